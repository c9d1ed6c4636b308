//! Mutants of texts that are part of a program, scripts and statements: a copy of the program has the
//! changed text in the place of the other one, so that nothing is built. May not run anything.

use std::fs;
use std::path::Path;

use super::Mutant;

/// The text with so many empty lines behind it that each of its changes is no longer than it.
pub(super) fn with_room(text: &str, mutants: &[&Mutant]) -> String {
    let grows = |mutant: &&Mutant| mutant.to.len().saturating_sub(mutant.from.len());
    let most = mutants.iter().map(grows).max().unwrap_or_default();
    text.to_owned() + &"\n".repeat(most)
}

/// Writes a copy of a program with the change in it; says whether the text is there. `text` is what the
/// program was built with.
pub(super) fn patch(from: &Path, to: &Path, text: &str, mutant: &Mutant) -> Result<bool, String> {
    let mut program = fs::read(from).map_err(|error| format!("{}: {error}", from.display()))?;
    if !replace(&mut program, text, &mutant.from, &mutant.to) {
        return Ok(false);
    }
    let told = |error: std::io::Error| format!("{}: {error}", to.display());
    // With the rights of the program.
    fs::copy(from, to).map_err(told)?;
    fs::write(to, program).map_err(told)?;
    Ok(true)
}

fn replace(program: &mut [u8], text: &str, from: &str, to: &str) -> bool {
    let mut changed = text.replacen(from, to, 1).into_bytes();
    // By what the change is longer, the room behind the text is shorter.
    changed.resize(text.len(), b'\n');
    let places = places(program, text.as_bytes());
    for &place in &places {
        program[place..place + text.len()].copy_from_slice(&changed);
    }
    !places.is_empty()
}

/// Where a text is in a program.
fn places(program: &[u8], text: &[u8]) -> Vec<usize> {
    let Some((&first, _)) = text.split_first() else { return Vec::new() };
    let mut found = Vec::new();
    let mut begin = 0;
    while let Some(next) = program[begin..].iter().position(|byte| *byte == first) {
        let at = begin + next;
        let is_it = program[at..].starts_with(text);
        found.extend(is_it.then_some(at));
        begin = at + if is_it { text.len() } else { 1 };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(from: &str, to: &str) -> Mutant {
        Mutant { from: from.to_owned(), to: to.to_owned(), ..Mutant::default() }
    }

    #[test]
    fn every_place_of_a_text_gets_the_change_in_its_length() {
        let text = with_room("-- a\nbb\n", &[&mutant("bb", "cccc"), &mutant("a", "")]);
        assert_eq!(text, "-- a\nbb\n\n\n");
        let before = format!("-- a\n-{text}x-{text}");
        for (from, to, after) in [
            ("bb", "cccc", "-- a\n--- a\ncccc\nx--- a\ncccc\n"),
            ("a", "", "-- a\n--- \nbb\n\n\n\nx--- \nbb\n\n\n\n"),
        ] {
            let mut program = before.clone().into_bytes();
            assert!(replace(&mut program, &text, from, to));
            assert_eq!(String::from_utf8_lossy(&program), after);
        }
        assert!(!replace(&mut b"another".to_vec(), &text, "bb", "c"));
    }
}
