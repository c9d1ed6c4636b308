//! What docs/recipes prints of a file is in that file.

use std::fs;

use super::examples;

/// `(path of the file, text)` for each block behind a line that ends with `[`path`](…):`.
fn printed(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut named = None;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(kind) = line.strip_prefix("```") {
            let text: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            if kind != "console" {
                let file = named.take().unwrap_or_else(|| panic!("no file is named for {text:?}"));
                found.push((file, text.join("\n")));
            }
        } else if let Some((_, rest)) = line.split_once("](../../examples/") {
            named = rest.split_once(')').map(|(path, _)| path.to_owned());
        }
    }
    found
}

#[test]
fn what_the_pages_of_recipes_print_is_what_is_run() {
    let pages = fs::read_dir(examples().join("../docs/recipes")).unwrap();
    let mut seen = 0;
    for page in pages.flatten().map(|entry| entry.path()) {
        for (file, text) in printed(&fs::read_to_string(&page).unwrap()) {
            let whole = fs::read_to_string(examples().join(&file)).unwrap();
            assert!(
                whole.contains(&text),
                "{}: {file} has another text than\n{text}",
                page.display()
            );
            seen += 1;
        }
    }
    assert!(seen >= 12, "only {seen} blocks were found");
}
