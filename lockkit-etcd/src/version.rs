//! What servers of different versions keep. No I/O.

/// Whether a leader of this version that lost its place without noticing is kept from ending the
/// leases that others hold at its successor (etcd's issue 15247; mended in 3.4.31 and 3.5.13). A
/// version that cannot be read is taken for an old one.
pub(crate) fn old_leaders_are_harmless(version: &str) -> bool {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    let mut next = || parts.next().flatten();
    let (Some(major), Some(minor), Some(patch)) = (next(), next(), next()) else {
        return false;
    };
    match (major, minor) {
        (3, ..=3) | (..=2, _) => false,
        (3, 4) => patch >= 31,
        (3, 5) => patch >= 13,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mended_versions_are_known() {
        for new in ["3.4.31", "3.4.40", "3.5.13", "3.6.0", "4.0.0", "3.5.21-rc.1"] {
            assert!(old_leaders_are_harmless(new), "{new}");
        }
        for old in ["3.4.23", "3.4.30", "3.5.12", "3.3.99", "2.3.8", "", "new", "3.5"] {
            assert!(!old_leaders_are_harmless(old), "{old}");
        }
    }
}
