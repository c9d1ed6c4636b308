//! The alert rules and the dashboard of examples/monitoring name metrics and labels that there are.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use yaml_rust2::YamlLoader;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What the code says in quotes: the names of metrics, and the values of their labels.
struct Code(String);

impl Code {
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut folders =
            ["lockkit-core/src", "lockkit-server/src"].map(|at| root.join(at)).to_vec();
        let mut code = String::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    code += &fs::read_to_string(path).unwrap();
                }
            }
        }
        Self(code)
    }

    fn has(&self, word: &str) -> bool {
        self.0.contains(&format!("\"{word}\""))
    }

    /// A metric, or one of the series that an exporter makes of a histogram.
    fn has_metric(&self, name: &str) -> bool {
        let of_histogram = ["_bucket", "_sum", "_count"].iter().filter_map(|end| {
            let histogram = name.strip_suffix(end)?;
            self.0.contains(&format!("histogram!(\"{histogram}\"")).then_some(())
        });
        self.has(name) && !self.0.contains(&format!("histogram!(\"{name}\""))
            || of_histogram.count() > 0
    }
}

/// The names of metrics in an expression.
fn metrics(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    words.filter(|word| word.starts_with("lockkit_")).collect()
}

/// The values in `label="value"` and `label!="value"`, but for Grafana's variables.
fn values(expression: &str) -> BTreeSet<&str> {
    let quoted = expression.split('"').skip(1).step_by(2);
    quoted.filter(|value| !value.starts_with('$')).collect()
}

fn rules() -> Vec<(String, String)> {
    let file = YamlLoader::load_from_str(&read("examples/monitoring/alerts.yaml")).unwrap();
    let rules = file[0]["groups"][0]["rules"].as_vec().expect("rules");
    let text = |value: &yaml_rust2::Yaml| value.as_str().expect("a text").to_owned();
    rules
        .iter()
        .map(|rule| {
            assert!(!rule["annotations"]["summary"].is_badvalue());
            (text(&rule["alert"]), text(&rule["expr"]))
        })
        .collect()
}

fn expressions(dashboard: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().expect("targets");
        targets.iter().map(|target| (text(&panel["title"]), text(&target["expr"])))
    });
    targets.collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&read("examples/monitoring/dashboard.json")).unwrap()
}

#[test]
fn every_metric_and_label_of_the_rules_and_the_dashboard_is_in_the_code() {
    let code = Code::read();
    let all = [rules(), expressions(&dashboard())].concat();
    assert!(all.len() > 20, "{}", all.len());
    for (title, expression) in all {
        let named = metrics(&expression);
        assert!(!named.is_empty(), "{title}: {expression}");
        for metric in named {
            assert!(code.has_metric(metric), "{title}: there is no metric {metric}");
        }
        for value in values(&expression) {
            assert!(code.has(value), "{title}: no label has the value {value:?}");
        }
    }
}

#[test]
fn a_metric_that_is_not_in_the_code_is_found() {
    let code = Code::read();
    assert!(
        code.has_metric("lockkit_lost_total") && code.has_metric("lockkit_hold_seconds_bucket")
    );
    for wrong in ["lockkit_lost", "lockkit_lost_total_sum", "lockkit_hold_seconds", "lockkit_http"]
    {
        assert!(!code.has_metric(wrong), "{wrong}");
    }
    let expression = r#"rate(lockkit_held{job=~"$job",reason!="broken"}[5m]) / lockkit_waiting"#;
    assert_eq!(metrics(expression), ["lockkit_held", "lockkit_waiting"].into());
    assert_eq!(values(expression), ["broken"].into());
}

#[test]
fn the_dashboard_shows_every_metric() {
    let all = expressions(&dashboard());
    let shown: String = all.into_iter().map(|(_, expression)| expression + "\n").collect();
    let code = Code::read().0;
    let quoted = code.split('"').skip(1).step_by(2);
    let name = |word: &&str| {
        let letter = |letter| matches!(letter, 'a'..='z' | '_');
        word.starts_with("lockkit_") && word.chars().all(letter)
    };
    let names: BTreeSet<_> = quoted.filter(name).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(shown.contains(name), "no panel shows {name}");
    }
}

#[test]
fn every_alert_is_explained() {
    let page = read("docs/monitoring.md");
    for (alert, _) in rules() {
        assert!(page.contains(&format!("`{alert}`")), "docs/monitoring.md does not have {alert}");
    }
}
