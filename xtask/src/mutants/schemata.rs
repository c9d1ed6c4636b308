//! Mutants of functions, all in one build: the body of a function has a copy for each change in it, and
//! an environment variable chooses among them when the program runs. May not read or write files.

use std::ops::{Range, RangeInclusive};

use syn::visit::{self, Visit};

use super::Mutant;

/// The environment variable with the number of the mutant that is to run. Not `LOCKKIT_…`: the tests of
/// the command remove these.
pub(super) const CHOICE: &str = "CHOSEN_MUTANT";

/// Its value; 0 without one. Read once: some of these functions are called all the time.
const CHOSEN: &str = "{ static MUTANT: ::std::sync::OnceLock<usize> = ::std::sync::OnceLock::new(); \
    *MUTANT.get_or_init(|| ::std::env::var(\"CHOSEN_MUTANT\").map_or(0, |it| it.parse().unwrap_or(0))) }";

/// A file whose functions have several bodies.
#[derive(Debug)]
pub(super) struct Rewritten {
    pub(super) text: String,
    pub(super) bodies: Vec<Body>,
}

/// A body in it.
#[derive(Debug)]
pub(super) struct Body {
    /// Whose change it has; those of all changes of the function where it has none.
    pub(super) numbers: Vec<usize>,
    pub(super) lines: RangeInclusive<usize>,
}

/// The file with those of the changes that are inside of functions. Others are not in it: constants,
/// signatures, functions that may be called in constants, and those that return `impl Trait`, whose
/// bodies could have different types.
pub(super) fn rewrite(text: &str, mutants: &[&Mutant]) -> Result<Rewritten, String> {
    let file = syn::parse_file(text).map_err(|error| error.to_string())?;
    let mut functions = Functions::default();
    functions.visit_file(&file);
    let mut rewritten = Rewritten { text: String::new(), bodies: Vec::new() };
    let mut copied = 0;
    for function in functions.0 {
        let body = &text[function.clone()];
        let inside = |mutant: &&&Mutant| {
            // Not the braces themselves: the change could add or remove one.
            let at = text.find(&mutant.from).unwrap_or_default();
            function.start < at && at + mutant.from.len() < function.end
        };
        let changes: Vec<_> = mutants.iter().filter(inside).collect();
        if changes.is_empty() {
            continue;
        }
        rewritten.text += &text[copied..function.start];
        rewritten.text += &format!("{{ match {CHOSEN} {{\n");
        for mutant in &changes {
            let changed = body.replacen(&mutant.from, &mutant.to, 1);
            rewritten.push(&mutant.number.to_string(), &changed, vec![mutant.number]);
        }
        rewritten.push("_", body, changes.iter().map(|mutant| mutant.number).collect());
        rewritten.text += "} }";
        copied = function.end;
    }
    rewritten.text += &text[copied..];
    Ok(rewritten)
}

impl Rewritten {
    fn push(&mut self, pattern: &str, body: &str, numbers: Vec<usize>) {
        let line = |text: &str| text.matches('\n').count() + 1;
        let first = line(&self.text);
        self.text += &format!("{pattern} => {body}\n");
        self.bodies.push(Body { numbers, lines: first..=line(&self.text) - 1 });
    }

    /// The mutants of the body with this line.
    pub(super) fn at(&self, line: usize) -> &[usize] {
        self.bodies.iter().find(|body| body.lines.contains(&line)).map_or(&[], |body| &body.numbers)
    }
}

/// The bodies of the outermost functions that may have several, in the order of the file.
#[derive(Default)]
struct Functions(Vec<Range<usize>>);

impl Functions {
    fn add(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let mut opaque = Opaque(signature.constness.is_some());
        opaque.visit_return_type(&signature.output);
        if !opaque.0 {
            self.0.push(body.brace_token.span.join().byte_range());
        }
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.add(&function.sig, &function.block);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.add(&function.sig, &function.block);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.add(&function.sig, body);
        }
    }
}

/// Whether a type has `impl Trait` in it.
struct Opaque(bool);

impl<'ast> Visit<'ast> for Opaque {
    fn visit_type_impl_trait(&mut self, opaque: &'ast syn::TypeImplTrait) {
        self.0 = true;
        visit::visit_type_impl_trait(self, opaque);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(text: &str, changes: &[(&str, &str)]) -> Rewritten {
        let mutant = |(number, (from, to)): (usize, &(&str, &str))| Mutant {
            number,
            from: (*from).to_owned(),
            to: (*to).to_owned(),
            ..Mutant::default()
        };
        let mutants: Vec<_> = (1..).zip(changes).map(mutant).collect();
        rewrite(text, &mutants.iter().collect::<Vec<_>>()).expect("it is Rust")
    }

    #[test]
    fn a_function_gets_a_body_for_each_change_and_one_without() {
        let text = "fn a() {}\nasync fn b<T>(t: T) -> u8 {\n    1 + 2\n}\nconst C: u8 = 3;\n";
        let rewritten = rewritten(text, &[("1", "7"), ("2", "8")]);
        let expected = format!(
            "fn a() {{}}\nasync fn b<T>(t: T) -> u8 {{ match {CHOSEN} {{\n\
             1 => {{\n    7 + 2\n}}\n2 => {{\n    1 + 8\n}}\n_ => {{\n    1 + 2\n}}\n}} }}\nconst C: u8 = 3;\n"
        );
        assert_eq!(rewritten.text, expected);
        syn::parse_file(&rewritten.text).expect("it is still Rust");
        assert_eq!(rewritten.at(4), [1]);
        assert_eq!(rewritten.at(7), [2]);
        assert_eq!(rewritten.at(10), [1, 2]);
        assert!(rewritten.at(1).is_empty() && rewritten.at(12).is_empty());
    }

    #[test]
    fn what_cannot_have_several_bodies_is_left_as_it_is() {
        for text in [
            "const A: u8 = 1;",
            "const fn a() -> u8 { 1 }",
            "fn a() -> Option<impl Fn() -> u8> { Some(|| 1) }",
            "struct A { a: [u8; 1] }",
            "fn a(b: [u8; 1]) {}",
            "made! { fn a() -> u8 { 1 } }",
        ] {
            let rewritten = rewritten(text, &[("1", "2")]);
            assert_eq!(rewritten.text, text);
            assert!(rewritten.bodies.is_empty());
        }
    }

    #[test]
    fn a_function_inside_of_another_is_a_part_of_it() {
        let text = "impl A { fn a() -> u8 { fn b() -> u8 { 1 } b() + 2 } }\ntrait B { fn c() -> u8 { 3 } }";
        let rewritten = rewritten(text, &[("1", "7"), ("2", "8"), ("3", "9")]);
        assert_eq!(rewritten.text.matches("fn b()").count(), 3);
        let numbers: Vec<_> = rewritten.bodies.iter().map(|body| body.numbers.as_slice()).collect();
        assert_eq!(numbers, [&[1][..], &[2], &[1, 2], &[3], &[3]]);
    }
}
