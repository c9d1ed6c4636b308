//! What the list says of the tests of a mutant, as arguments of the runner: which programs have them, and
//! the filter that chooses them in a run of everything.

/// Tests that are chosen by packages, targets and parts of their names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Selection<'a> {
    /// What is set in their environment: words such as `NAME=value` before the first argument.
    pub(super) environment: Vec<(&'a str, &'a str)>,
    packages: Vec<&'a str>,
    /// As in the ids of programs: the name of a test, or `bin/NAME`; empty for the library.
    targets: Vec<String>,
    names: Vec<&'a str>,
}

impl<'a> Selection<'a> {
    pub(super) fn new(arguments: &'a str) -> Self {
        let mut it = Self::default();
        let mut words = arguments.split(' ');
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap_or_default();
            match word {
                "-p" => it.packages.push(value()),
                "--test" => it.targets.push(value().to_owned()),
                "--bin" => it.targets.push(format!("bin/{}", value())),
                "--lib" => it.targets.push(String::new()),
                // A build of everything has them all.
                "--features" => drop(value()),
                _ => match word.split_once('=') {
                    Some(pair) => it.environment.push(pair),
                    None => it.names.push(word),
                },
            }
        }
        it
    }

    /// Whether the program with this id may have tests of these.
    pub(super) fn has(&self, program: &str) -> bool {
        let (package, target) = program.split_once("::").unwrap_or((program, ""));
        self.packages.contains(&package)
            && (self.targets.is_empty() || self.targets.iter().any(|it| it == target))
    }

    /// A filter in the runner's language.
    pub(super) fn filter(&self) -> String {
        let target = |target: &String| match target.strip_prefix("bin/") {
            Some(name) => format!("kind(=bin) & binary(={name})"),
            None if target.is_empty() => "kind(=lib)".to_owned(),
            None => format!("kind(=test) & binary(={target})"),
        };
        let parts = [
            self.packages.iter().map(|package| format!("package(={package})")).collect::<Vec<_>>(),
            self.targets.iter().map(target).collect(),
            self.names.iter().map(|name| format!("test({name})")).collect(),
        ];
        let parts = parts.iter().filter(|choices| !choices.is_empty());
        parts.map(|choices| format!("({})", choices.join(" | "))).collect::<Vec<_>>().join(" & ")
    }

    /// Arguments that build no more of everything than what has these tests.
    pub(super) fn targets(&self) -> Vec<&str> {
        let targets = self.targets.iter();
        let arguments = targets.map(|target| match target.strip_prefix("bin/") {
            Some(name) => vec!["--bin", name],
            None if target.is_empty() => vec!["--lib"],
            None => vec!["--test", target],
        });
        arguments.flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_become_a_filter() {
        for (arguments, filter) in [
            ("-p a", "(package(=a))"),
            ("-p a --features b --lib c", "(package(=a)) & (kind(=lib)) & (test(c))"),
            (
                "X=1 -p a -p b --test c --test d e::f g",
                "(package(=a) | package(=b)) & (kind(=test) & binary(=c) | kind(=test) & binary(=d)) \
                 & (test(e::f) | test(g))",
            ),
            ("-p a --bin b", "(package(=a)) & (kind(=bin) & binary(=b))"),
        ] {
            assert_eq!(Selection::new(arguments).filter(), filter);
        }
        assert_eq!(Selection::new("X=1 -p a").environment, [("X", "1")]);
    }

    #[test]
    fn programs_are_found_by_their_ids() {
        let selection = Selection::new("-p a --test b --lib c");
        assert!(selection.has("a") && selection.has("a::b"));
        assert!(!selection.has("a::bin/b") && !selection.has("b::b") && !selection.has("a::c"));
        assert!(Selection::new("-p a c").has("a::bin/b"));
        assert_eq!(selection.targets(), ["--test", "b", "--lib"]);
    }
}
