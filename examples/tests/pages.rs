//! The code in the documentation is that which the tests beside this one compile and run.

/// A page, and where its code stands.
const PAGES: &[(&str, &str, &str)] = &[
    ("README.md", include_str!("../../README.md"), include_str!("library.rs")),
    ("lockkit/README.md", include_str!("../../lockkit/README.md"), include_str!("library.rs")),
    ("docs/library.md", include_str!("../../docs/library.md"), include_str!("library.rs")),
    ("docs/coming-from.md", include_str!("../../docs/coming-from.md"), include_str!("guides.rs")),
    ("docs/faq.md", include_str!("../../docs/faq.md"), include_str!("guides.rs")),
    ("docs/fencing.md", include_str!("../../docs/fencing.md"), include_str!("fencing.rs")),
    (
        "docs/start.md",
        include_str!("../../docs/start.md"),
        include_str!("../src/bin/start/main.rs"),
    ),
    ("docs/testing.md", include_str!("../../docs/testing.md"), include_str!("testing.rs")),
];

/// Without indentation, so that code may stand in a function there.
fn flat(code: &str) -> String {
    code.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_code_of_every_page_is_compiled_and_run() {
    for (page, text, source) in PAGES {
        let blocks: Vec<_> = text.split("```rust\n").skip(1).collect();
        assert!(!blocks.is_empty(), "{page} has code");
        for block in blocks {
            let code = block.split("```").next().unwrap();
            assert!(flat(source).contains(&flat(code)), "{page} has code of its own:\n{code}");
        }
    }
}
