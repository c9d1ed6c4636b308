//! What stands in for protoc when this repository is built answers as the real protoc does.
//!
//! After an update of etcd-client, with protoc installed:
//! `PROTOC=protoc RENEW=1 cargo test -p lockkit-etcd --test protoc`, and commit `tools`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What the build script of etcd-client asks for.
const ASKED: [&str; 7] = [
    "-I",
    "proto",
    "proto/etcd/api/authpb/auth.proto",
    "proto/etcd/api/etcdserverpb/rpc.proto",
    "proto/etcd/api/mvccpb/kv.proto",
    "proto/etcd/server/etcdserver/api/v3election/v3electionpb/v3election.proto",
    "proto/etcd/server/etcdserver/api/v3lock/v3lockpb/v3lock.proto",
];

fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools")
}

/// The folder of etcd-client's source, as cargo has it.
fn client() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    let told = cargo.args(["metadata", "--format-version", "1", "--locked"]).output().unwrap();
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    let packages = told["packages"].as_array().unwrap();
    let client = packages.iter().find(|package| package["name"] == "etcd-client").unwrap();
    Path::new(client["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned()
}

/// Runs a program where the client's build script does.
fn ran(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).current_dir(client()).output().unwrap()
}

#[test]
fn the_stand_in_answers_as_protoc_does() {
    let folder = tempfile::tempdir().unwrap();
    let asked_of = |program: &Path, name: &str, options: &[&str]| {
        let out = folder.path().join(name);
        let output = ["-o", out.to_str().unwrap()];
        let ran = ran(program, &[options, &output[..], &ASKED[..]].concat());
        assert!(ran.status.success(), "{program:?}: {}", String::from_utf8_lossy(&ran.stderr));
        fs::read(out).unwrap()
    };
    // Without the comments, and without what is imported only for options of gateways: the
    // generated code is the same but for its documentation.
    let real = asked_of(Path::new("protoc"), "real", &[]);
    let stand_in = tools().join("protoc");
    if std::env::var_os("RENEW").is_some() {
        let kept = tools().join("protoc.d");
        fs::write(kept.join("etcd-client.binpb"), &real).unwrap();
        fs::write(kept.join("etcd-client.inputs"), ran(&stand_in, &ASKED).stdout).unwrap();
    }
    let as_a_build_asks = ["--include_imports", "--include_source_info"];
    let answered = asked_of(&stand_in, "answered", &as_a_build_asks);
    assert!(answered == real, "another answer than protoc's: this file says how to renew it");
}

#[test]
fn the_stand_in_refuses_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let changed = folder.path().join("proto");
    let copied = Command::new("cp").arg("-r").arg(client().join("proto")).arg(&changed).status();
    assert!(copied.unwrap().success());
    fs::write(changed.join("etcd/api/authpb/auth.proto"), "syntax = \"proto3\";").unwrap();
    let changed = ["-I", changed.to_str().unwrap()];
    let output = ["-o", out.to_str().unwrap()];
    for asked in [[&changed, &ASKED[2..]].concat(), ASKED[..3].to_vec(), vec!["--version"]] {
        let refused = ran(&tools().join("protoc"), &[&output[..], &asked].concat());
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("set PROTOC=protoc"), "{said}");
        assert!(!out.exists());
    }
}
