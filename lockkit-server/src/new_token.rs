//! New tokens: a secret, and the line by which a file of tokens knows it.

use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use lockkit_core::Error;
use lockkit_core::driver::ClaimId;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest, Sha256};

use crate::tokens::{self, AccessTokens};

/// A token that was just made. Its secret is nowhere else.
pub struct NewToken {
    secret: String,
    file_line: String,
}

/// What a name in a file of tokens may be written with as it is.
const AS_IT_IS: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/').remove(b'@');

impl NewToken {
    /// 256 random bits for a caller of this name, with these rights, each as [`AccessTokens`] has them.
    ///
    /// # Errors
    /// [`Error::Config`] for a name or right that cannot be.
    pub fn random(name: &str, rights: &[String]) -> Result<Self, Error> {
        if name.is_empty() {
            return Err(Error::config("the name of a token has a character at least"));
        }
        let spaced = |right: &&String| right.is_empty() || right.contains(char::is_whitespace);
        if let Some(right) = rights.iter().find(spaced) {
            let what = format!("{right:?} is no right: write a space as %20");
            return Err(Error::Config(what));
        }
        let secret = [(); 2].map(|()| ClaimId::random().to_hex()).concat();
        let hash: String = Sha256::digest(&secret).iter().map(|b| format!("{b:02x}")).collect();
        let name = utf8_percent_encode(name, AS_IT_IS);
        let line = format!("{name} {hash} {}", rights.join(" "));
        tokens::check(&line).map_err(Error::config)?;
        Ok(Self { secret, file_line: line })
    }

    /// What the caller sends.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// What the file has: the name, the hash and the rights.
    pub fn file_line(&self) -> &str {
        &self.file_line
    }

    /// Adds the line to a file of tokens, which is made with mode 0600 if there is none.
    ///
    /// # Errors
    /// [`Error::Config`] for a file that cannot be written or has an error in any line; it stays as
    /// it was.
    pub fn append_to(&self, path: &Path) -> Result<(), Error> {
        if path.exists() {
            AccessTokens::load(path)?;
        }
        self.append(path)
            .map_err(|e| Error::Config(format!("cannot write to {}: {e}", path.display())))
    }

    fn append(&self, path: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).mode(0o600).open(path)?;
        let mut last = [b'\n'];
        if file.metadata()?.len() > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        let before = if last == *b"\n" { "" } else { "\n" };
        // One write: a server that reads the file meanwhile sees all of the line or nothing.
        file.write_all(format!("{before}{}\n", self.file_line).as_bytes())?;
        file.sync_all()
    }
}

impl std::fmt::Debug for NewToken {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewToken").field("line", &self.file_line).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn rights(all: &[&str]) -> Vec<String> {
        all.iter().map(|&right| right.to_owned()).collect()
    }

    #[test]
    fn a_token_is_known_by_its_line_and_its_secret_is_not_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let billing = NewToken::random("billing", &rights(&["read,lock@a:b/", "read@*"])).unwrap();
        billing.append_to(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // An editor may have left the last line without its end.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.trim_end()).unwrap();
        let odd = NewToken::random("# ü *%", &rights(&["break@a%20b"])).unwrap();
        odd.append_to(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        let tokens = AccessTokens::load(&path).unwrap();
        for (token, name) in [(billing, "billing"), (odd, "# ü *%")] {
            assert_eq!(token.secret().len(), 64);
            assert_eq!(&*tokens.find(token.secret().as_bytes()).unwrap().name, name);
            assert!(!format!("{text} {token:?}").contains(token.secret()));
        }
    }

    #[test]
    fn what_cannot_be_is_refused_and_a_file_with_an_error_is_left_alone() {
        for (name, all) in [
            ("", &["lock@*"][..]),
            ("a", &[]),
            ("a", &["lock"]),
            ("a", &["own@*"]),
            ("a", &["lock@a b"]),
            ("a", &["lock@*\nb"]),
            ("a", &[""]),
            ("a\u{7}", &["lock@*"]),
        ] {
            let refused = NewToken::random(name, &rights(all));
            assert!(matches!(refused, Err(Error::Config(_))), "{name:?} {all:?}: {refused:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        std::fs::write(&path, "nonsense").unwrap();
        let token = NewToken::random("a", &rights(&["lock@*"])).unwrap();
        token.append_to(&path).unwrap_err();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "nonsense");
    }
}
