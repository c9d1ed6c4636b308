//! docs/recipes/kubernetes.md: the manifests follow the API's schema, and their commands are run. There is
//! no cluster here.

use std::fs;

use super::{Recipe, examples};
use crate::stage::{code, stderr, stdout, wait_for};

/// The lists behind `command:` in a manifest.
fn commands(file: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(examples().join("kubernetes").join(file)).unwrap();
    let lists = text.lines().filter_map(|line| line.trim().strip_prefix("command: "));
    lists.map(|list| serde_json::from_str(list).unwrap()).collect()
}

/// As a line for a shell, with the variables as Kubernetes replaces them.
fn line(command: &[String]) -> String {
    let words =
        command.iter().map(|word| format!("\"{}\"", word.replace("$(", "${").replace(')', "}")));
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_manifests_follow_the_schema_of_the_api_with_pypi() {
    let mut recipe = Recipe::new("kubernetes");
    let Some(()) = recipe.packages() else { return };
    let files: Vec<_> = fs::read_dir(examples().join("kubernetes")).unwrap().flatten().collect();
    assert!(files.len() >= 3);
    let names: Vec<_> = files.iter().map(|file| file.file_name().into_string().unwrap()).collect();
    let check = "python3 -m kubernetes_validate --strict -k 1.35";
    let ran = recipe.script(&format!("{check} {}", names.join(" "))).output().unwrap();
    assert_eq!(code(&ran), 0, "{}{}", stdout(&ran), stderr(&ran));
    let broken =
        format!("sed 's/replicas:/replica:/' migrate.yaml >broken.yaml; {check} broken.yaml");
    assert_ne!(code(&recipe.script(&broken).output().unwrap()), 0, "it refuses others");
}

#[test]
fn one_of_three_pods_runs_what_the_init_container_says() {
    let mut recipe = Recipe::new("kubernetes");
    recipe.set("RELEASE", "4.2");
    let command = line(&commands("migrate.yaml")[0]);
    let run = command.replace(
        "\"python3\" \"-m\" \"alembic\" \"upgrade\" \"head\"",
        "sh -c 'echo $HOST >>ran; sleep 0.3'",
    );
    assert_ne!(run, command);
    let mut pods = ["a", "b", "c"].map(|name| recipe.host(name, &run));
    for (pod, name) in pods.iter_mut().zip(["a", "b", "c"]) {
        assert_eq!(pod.end(), Some(0), "{}", recipe.log(name));
    }
    assert_eq!(fs::read_to_string(recipe.stage.path("ran")).unwrap().lines().count(), 1);
}

#[test]
fn the_sidecar_serves_locks_and_its_probe_asks_it() {
    let recipe = Recipe::new("kubernetes");
    let [serve, probe, _] = &commands("sidecar.yaml")[..] else { panic!("three commands") };
    let none = recipe.script(&line(probe).replace("7411", "9")).output().unwrap();
    assert_eq!(code(&none), 69, "not ready: {}", stderr(&none));
    // A port that is free here.
    let _sidecar = recipe.host("sidecar", &line(serve).replace("7411", "0"));
    let address = wait_for("the service", || {
        let log = recipe.log("sidecar");
        let (_, rest) = log.split_once("http://")?;
        rest.split_once('\n').map(|(address, _)| address.trim().to_owned())
    });
    let ready = recipe.script(&line(probe).replace("127.0.0.1:7411", &address)).output().unwrap();
    assert_eq!(code(&ready), 0, "{}", stderr(&ready));
}
