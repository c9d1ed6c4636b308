//! Certificates that a backend's URL names: `?ca=FILE`, `?cert=FILE&key=FILE`, in PEM.

use crate::Error;
use crate::url::UrlOption;

/// The files that a URL names.
#[derive(Clone, Debug, Default)]
pub struct PemFiles {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

/// What stands in them.
#[derive(Clone)]
#[non_exhaustive]
pub struct Pem {
    /// Whose certificates to trust.
    pub ca: String,
    /// What to show to a server that asks who is there: a certificate, and its key.
    pub identity: Option<(String, String)>,
}

impl PemFiles {
    /// Takes an option of a URL, if it is about these files. Says whether it is.
    pub fn take(&mut self, option: &UrlOption<'_>) -> Result<bool, Error> {
        let file = match option.name {
            "ca" => &mut self.ca,
            "cert" => &mut self.cert,
            "key" => &mut self.key,
            _ => return Ok(false),
        };
        *file = Some(option.decoded()?.into_owned());
        Ok(true)
    }

    /// Whether the URL names none.
    pub fn is_empty(&self) -> bool {
        self.ca.is_none() && self.cert.is_none() && self.key.is_none()
    }

    /// Whether TLS can work with them. Reads nothing.
    ///
    /// # Errors
    /// [`Error::Config`] without an authority, and with a certificate and no key or the other way
    /// round.
    pub fn check(&self) -> Result<(), Error> {
        match (&self.ca, self.cert.is_some() == self.key.is_some()) {
            (None, _) => Err(Error::config("TLS needs the file of the authority: ?ca=FILE")),
            (_, false) => Err(Error::config("cert=FILE and key=FILE belong together")),
            (Some(_), true) => Ok(()),
        }
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::Config`] as of [`check`](Self::check), and for a file that cannot be read.
    pub fn read(&self) -> Result<Pem, Error> {
        self.check()?;
        let identity = self.cert.as_ref().zip(self.key.as_ref());
        Ok(Pem {
            ca: read(self.ca.as_deref().unwrap_or_default())?,
            identity: identity.map(|(cert, key)| Ok((read(cert)?, read(key)?))).transpose()?,
        })
    }
}

fn read(file: &str) -> Result<String, Error> {
    std::fs::read_to_string(file).map_err(|e| Error::Config(format!("{file} cannot be read: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::split_query;

    fn files(url: &str) -> PemFiles {
        let mut files = PemFiles::default();
        for option in split_query(url).1 {
            assert!(files.take(&option).unwrap() || option.name == "other", "{}", option.name);
        }
        files
    }

    #[test]
    fn certificates_that_cannot_work_are_refused_with_the_reason() {
        assert!(files("x://h?other=1").is_empty());
        for (query, why) in [
            ("cert=/x&key=/y", "?ca=FILE"),
            ("ca=/x&cert=/y", "belong together"),
            ("ca=/x&key=/y", "belong together"),
            ("ca=/does%2Fnot/exist", "/does/not/exist cannot be read"),
        ] {
            let files = files(&format!("x://h?{query}"));
            assert!(!files.is_empty());
            let message = files.read().err().unwrap().to_string();
            assert!(message.contains(why), "{query}: {message}");
        }
    }
}
