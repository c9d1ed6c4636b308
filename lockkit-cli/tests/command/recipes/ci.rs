//! docs/recipes/pipelines.md: deploys of several repositories, by GitHub and GitLab.

use std::fs;

use super::Recipe;
use crate::stage::{code, stderr, stdout, wait_for};

#[test]
fn the_pipelines_follow_the_schemas_with_pypi() {
    let mut recipe = Recipe::new("recipes/ci");
    let Some(()) = recipe.packages() else { return };
    for (schema, file) in [("github-workflows", "github.yaml"), ("gitlab-ci", "gitlab.yaml")] {
        let check = format!("python3 -m check_jsonschema --builtin-schema vendor.{schema}");
        let ran = recipe.script(&format!("{check} {file}")).output().unwrap();
        assert_eq!(code(&ran), 0, "{}{}", stdout(&ran), stderr(&ran));
        let broken = format!(
            "sed -E 's/runs-on:|script:/scrypt:/' {file} >broken.yaml; {check} broken.yaml"
        );
        assert_eq!(code(&recipe.script(&broken).output().unwrap()), 1, "{schema} refuses others");
    }
}

#[test]
fn deploys_of_two_repositories_come_one_after_the_other() {
    let recipe = Recipe::new("recipes/ci");
    let text = fs::read_to_string(recipe.stage.path("github.yaml")).unwrap();
    assert!(text.contains("      - run: ./deploy.sh\n"));
    let text = fs::read_to_string(recipe.stage.path("gitlab.yaml")).unwrap();
    assert!(text.contains("    - ./deploy.sh\n"));
    let release = "#!/bin/sh\necho begin $HOST >>log; until [ -e go ]; do sleep 0.05; done; echo end $HOST >>log\n";
    fs::write(recipe.stage.path("text"), release).unwrap();
    assert_eq!(
        code(&recipe.script("cp text release.sh; chmod +x release.sh").output().unwrap()),
        0
    );
    let log = || fs::read_to_string(recipe.stage.path("log")).unwrap_or_default();
    let mut first = recipe.host("shop", "PIPELINE='shop 17' ./deploy.sh");
    wait_for("the first deploy", || (log() == "begin shop\n").then_some(()));
    let mut second = recipe.host("mail", "PIPELINE='mail 4' ./deploy.sh");
    wait_for("the second one", || {
        let shown = stdout(&recipe.stage.run(&["show", "--url", &recipe.url, "deploy/production"]));
        (shown.contains("shop 17") && shown.contains("mail 4")).then_some(())
    });
    assert_eq!(log(), "begin shop\n");
    fs::write(recipe.stage.path("go"), "").unwrap();
    assert_eq!((first.end(), second.end()), (Some(0), Some(0)));
    assert_eq!(log(), "begin shop\nend shop\nbegin mail\nend mail\n");
}
