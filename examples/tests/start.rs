//! The program of docs/start.md, and the servers that it begins with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use yaml_rust2::{Yaml, YamlLoader};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

#[test]
fn the_program_prints_its_token() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("demo.db").display());
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let ran =
            Command::new(env!("CARGO_BIN_EXE_start")).env("LOCKKIT_URL", &url).output().unwrap();
        let said = String::from_utf8(ran.stdout).unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let token = said.trim().strip_prefix("alone, with token ").unwrap().to_owned();
        tokens.push(token.parse::<u64>().unwrap());
    }
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}

/// The URL that a section exports, as `(user and password, port, database)`.
fn exported(page: &str) -> (String, u16, String) {
    let line = page.lines().find_map(|line| line.strip_prefix("$ export LOCKKIT_URL="));
    let (_, rest) = line.expect("the section exports a URL").split_once("://").unwrap();
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, address) = authority.rsplit_once('@').unwrap_or(("", authority));
    let port = address.strip_prefix("127.0.0.1:").expect("of this host").parse().unwrap();
    (login.to_owned(), port, database.to_owned())
}

fn texts(value: &Yaml) -> Vec<&str> {
    value.as_vec().into_iter().flatten().filter_map(Yaml::as_str).collect()
}

#[test]
fn every_compose_file_starts_the_server_that_its_page_connects_to() {
    let page = fs::read_to_string(repository().join("docs/start.md")).unwrap();
    let mut checked = 0;
    for entry in fs::read_dir(repository().join("examples/compose")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "yaml") {
            continue; // what an image is built from
        }
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let up = format!("docker compose -f examples/compose/{name}.yaml up --detach --wait");
        let section = page.split("\n### ").find(|section| section.contains(&up));
        let section = section.unwrap_or_else(|| panic!("{name}: the page starts it"));
        let file = YamlLoader::load_from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let services = file[0]["services"].as_hash().expect("services");
        assert_eq!(services.len(), 1, "{name}");
        let service = services.values().next().unwrap();
        let pinned = service["image"].as_str().is_some_and(|image| image.contains(':'));
        assert!(pinned || !service["build"].is_badvalue(), "{name}: an image with a version");
        assert!(!service["healthcheck"]["test"].is_badvalue(), "{name}: --wait needs a check");
        let (login, port, database) = exported(section);
        let published = format!("127.0.0.1:{port}:{port}");
        assert_eq!(texts(&service["ports"]), [published], "{name}");
        let set: Vec<_> = service["environment"].as_hash().into_iter().flatten().collect();
        for word in login.split(':').chain([database.as_str()]).filter(|word| !word.is_empty()) {
            let found = set.iter().any(|(_, value)| value.as_str() == Some(word));
            assert!(found, "{name}: {word} is in the URL of the page only");
        }
        checked += 1;
    }
    assert_eq!(checked, 5);
}
