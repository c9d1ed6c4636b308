//! The description in `openapi.json` against the code: every path, every type, every field.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lockkit_server::ServiceSettings;
use serde_json::Value;

use crate::served::Served;

fn description() -> Value {
    serde_json::from_str(include_str!("../../openapi.json")).unwrap()
}

fn source(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[tokio::test]
async fn every_path_is_described_and_every_described_path_is_there() {
    let code = source("src/api.rs");
    let routes: BTreeSet<_> = code
        .split(".route(\"")
        .skip(1)
        .flat_map(|rest| {
            let (path, rest) = rest.split_once('"').unwrap();
            let methods: &[_] = match rest {
                _ if rest.starts_with(", post(") => &["post"],
                // LOCK and UNLOCK, too, which OpenAPI has no words for.
                _ if rest.starts_with(", any(terraform::state)") => &["delete", "get", "post"],
                _ if rest.starts_with(", any(") => &["delete", "put"],
                _ => &["get"],
            };
            methods.iter().map(|method| (path.to_owned(), (*method).to_owned()))
        })
        .collect();
    let description = description();
    let described = description["paths"].as_object().unwrap().iter();
    let described: BTreeSet<_> = described
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().keys();
            let methods =
                methods.filter(|it| !["description", "parameters"].contains(&it.as_str()));
            methods.map(|method| (path.clone(), method.clone()))
        })
        .collect();
    assert_eq!(routes, described);

    let served = Served::new(ServiceSettings::new()).await;
    let answer = served.client().await.get("/openapi.json", "").await;
    assert_eq!(answer.json(), description);
}

#[test]
fn every_request_is_in_the_table_of_the_documentation_and_in_no_other_form() {
    let page = source("../docs/service.md");
    let table: String = page.lines().filter(|line| line.starts_with("| `")).collect();
    let in_code = table.split('`').skip(1).step_by(2);
    let paths = in_code.map(|code| code.trim_start_matches("GET "));
    let listed: BTreeSet<_> =
        paths.filter(|path| path.starts_with('/')).map(str::to_owned).collect();
    let description = description();
    // Those for a browser, and the description itself, are in the text.
    let of_a_page = ["/", "/page.css", "/page.js", "/openapi.json"];
    let described = description["paths"].as_object().unwrap().keys();
    let described: BTreeSet<_> =
        described.filter(|path| !of_a_page.contains(&path.as_str())).cloned().collect();
    assert_eq!(listed, described);
    for path in described.iter().filter_map(|path| path.strip_prefix("/v1/")) {
        let known = ["capabilities", "health", "promises"].contains(&path);
        assert!(known || page.contains(&format!("`{path}`")), "no right is said to allow {path}");
    }
}

#[test]
fn every_field_and_word_on_the_wire_is_described() {
    let description = description();
    let schemas = description["components"]["schemas"].as_object().unwrap();
    let mut types = BTreeMap::new();
    let files = [
        "answers",
        "backend",
        "claims",
        "listing",
        "inspect",
        "problem",
        "registers",
        "status",
        "watch",
    ];
    for file in files {
        types.extend(types_of(&source(&format!("../lockkit-http/src/wire/{file}.rs"))));
    }
    assert!(types.len() > 40, "{types:?}");
    for (name, mut words) in types {
        let schema = schemas.get(&name).unwrap_or_else(|| panic!("{name} is not described"));
        if name == "Lock" {
            // It has the fields of its key among its own.
            words.remove("key");
            words.extend(["namespace", "name", "space"].map(str::to_owned));
        }
        assert_eq!(words, described(schema), "{name}");
    }
}

#[test]
fn every_reference_leads_somewhere() {
    let description = description();
    let mut references = Vec::new();
    collect(&description, &mut references);
    assert!(references.len() > 50);
    for reference in references {
        let at = reference.trim_start_matches('#');
        assert!(description.pointer(at).is_some(), "{reference}");
    }
}

fn collect(value: &Value, references: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            references.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|inner| collect(inner, references));
        }
        Value::Array(items) => items.iter().for_each(|inner| collect(inner, references)),
        _ => {}
    }
}

/// The properties of an object, the words of an enumeration, or what tells alternatives apart.
fn described(schema: &Value) -> BTreeSet<String> {
    let strings = |it: &Value| -> Option<BTreeSet<String>> {
        Some(it.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    };
    if let Some(words) = strings(&schema["enum"]) {
        return words;
    }
    if let Some(properties) = schema["properties"].as_object() {
        return properties.keys().cloned().collect();
    }
    let alternatives = schema["oneOf"].as_array().or(schema["anyOf"].as_array()).unwrap();
    let word = |alternative: &Value| {
        if let Some(reference) = alternative["$ref"].as_str() {
            return reference.rsplit('/').next().unwrap().to_owned();
        }
        let first = alternative["allOf"].get(0).unwrap_or(alternative);
        let properties = first["properties"].as_object().unwrap();
        let constant = properties.values().find_map(|it| it["const"].as_str());
        constant.unwrap_or_else(|| properties.keys().next().unwrap()).to_owned()
    };
    alternatives.iter().map(word).collect()
}

/// The public types of a file with the names of their fields or variants on the wire.
fn types_of(code: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut types = BTreeMap::new();
    let (mut inside, mut renamed): (Option<(String, bool)>, _) = (None, None);
    for line in code.lines() {
        if let Some(rest) = line.strip_prefix("pub struct ").or(line.strip_prefix("pub enum ")) {
            let name = rest.split([' ', '{', '(']).next().unwrap().to_owned();
            if name.ends_with('>') {
                // A generic one is described for each of its types.
                continue;
            }
            types.insert(name.clone(), BTreeSet::new());
            inside = Some((name, line.starts_with("pub struct")));
        }
        let Some((name, is_struct)) = &inside else { continue };
        if line == "}" {
            inside = None;
            continue;
        }
        if let Some((_, rest)) = line.split_once("rename = \"") {
            renamed = rest.split('"').next().map(str::to_owned);
        }
        // Fields of variants are indented further.
        let item = line.strip_prefix("    ").filter(|item| item.starts_with(char::is_alphabetic));
        let word = match (item, is_struct) {
            (Some(item), true) => item.strip_prefix("pub ").and_then(|it| it.split(':').next()),
            (Some(item), false) => item.split([' ', ',', '(']).next(),
            (None, _) => None,
        };
        if let Some(word) = word {
            let word = renamed.take().unwrap_or_else(|| snake(word));
            types.get_mut(name).unwrap().insert(word);
        }
    }
    types
}

fn snake(word: &str) -> String {
    let mut snake = String::new();
    for (at, c) in word.char_indices() {
        if c.is_ascii_uppercase() && at > 0 {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}
