//! The README names what there is.

use lockkit_conformance::CASES;

#[test]
fn the_readme_has_every_group() {
    let readme = include_str!("../README.md");
    for case in CASES {
        assert!(readme.contains(&format!("`{}`", case.group)), "{} is not there", case.group);
    }
}
