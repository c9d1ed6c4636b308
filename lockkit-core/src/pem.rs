//! Certificates that a backend's URL names: `?ca=FILE`, `?cert=FILE&key=FILE`, in PEM.

use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::Error;
use crate::url::UrlOption;

/// The files that a URL names.
#[derive(Clone, Debug, Default)]
pub struct PemFiles {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

/// The contents of the files, which have what they are named for.
#[derive(Clone)]
#[non_exhaustive]
pub struct Pem {
    /// The certificates of the authorities to trust, where the URL names a file of them.
    pub ca: Option<String>,
    /// Client certificate and key for mutual TLS.
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

    /// Reads the files for a client that trusts no authority but those that the URL names: also gives
    /// their certificates by themselves.
    ///
    /// # Errors
    /// [`Error::Config`] without a file of them, before any is read; otherwise as [`read`](Self::read).
    pub fn read_with_authority(&self) -> Result<(String, Pem), Error> {
        let missing = || Error::config("TLS needs the file of the authority: ?ca=FILE");
        let file = self.ca.as_deref().ok_or_else(missing)?;
        Ok((certificates("ca", file)?, self.read()?))
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::Config`] for a certificate without a key or the other way round, for a file that cannot
    /// be read, and for one without what it is named for: it names the file, and shows nothing of it.
    pub fn read(&self) -> Result<Pem, Error> {
        let identity = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((certificates("cert", cert)?, private_key(key)?)),
            (None, None) => None,
            _ => return Err(Error::config("cert=FILE and key=FILE belong together")),
        };
        let ca = self.ca.as_deref().map(|file| certificates("ca", file)).transpose()?;
        Ok(Pem { ca, identity })
    }
}

fn read(file: &str) -> Result<String, Error> {
    let bytes = std::fs::read(file)
        .map_err(|error| Error::Config(format!("{file} cannot be read: {error}")))?;
    String::from_utf8(bytes).map_err(|_| {
        Error::Config(format!(
            "{file} is no text in PEM: convert it (openssl x509 -inform der -in {file})"
        ))
    })
}

/// A text with at least one certificate. Bundles of systems have comments, and some entries that not
/// every reader knows.
fn certificates(option: &str, file: &str) -> Result<String, Error> {
    let text = read(file)?;
    // A DER sequence. What else is wrong with it, the TLS library says when it connects.
    let is_one = |found: Result<CertificateDer<'_>, pem::Error>| {
        found.is_ok_and(|certificate| certificate.first() == Some(&0x30))
    };
    // OpenSSL's own form, with what the certificate is trusted for behind it.
    let trusted = text.contains("BEGIN TRUSTED CERTIFICATE");
    if trusted || CertificateDer::pem_slice_iter(text.as_bytes()).any(is_one) {
        return Ok(text);
    }
    let instead = match text.contains("PRIVATE KEY-----") {
        true => " (it has a private key)",
        false => "",
    };
    let sentence =
        format!("{option}={file} has no certificate in PEM{instead}: name a file that has");
    Err(Error::Config(sentence))
}

fn private_key(file: &str) -> Result<String, Error> {
    let text = read(file)?;
    if text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED") {
        return Err(Error::Config(format!(
            "the private key in key={file} is encrypted, and there is no way to give its passphrase: \
             decrypt it into a file that only this user can read (openssl pkey -in {file} -out FILE)"
        )));
    }
    match PrivateKeyDer::from_pem_slice(text.as_bytes()) {
        Ok(_) => Ok(text),
        Err(_) => Err(Error::Config(format!(
            "key={file} has no private key in PEM: name a file that has"
        ))),
    }
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
    /// A certificate in form; the key is 48 bytes that are none, which only TLS would notice.
    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n";
    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nMAMCAQE=\n-----END PRIVATE KEY-----\n";

    #[test]
    fn files_without_what_they_are_named_for_are_refused_and_not_shown() {
        let folder = std::env::temp_dir().join(format!("lockkit-pem-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, text: &[u8]| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (cert, key) = (file("cert", CERTIFICATE.as_bytes()), file("key", KEY.as_bytes()));
        let text = file("text", b"hunter2");
        let binary = file("binary", &[0x30, 0x82, 0xff]);
        let encrypted = file("encrypted", KEY.replace("PRIVATE", "ENCRYPTED PRIVATE").as_bytes());
        let both = file("both", format!("{KEY}{CERTIFICATE}").as_bytes());
        let odd = "# Our bundle\r\n-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        let bundle = file("bundle", format!("{odd}\r\n{CERTIFICATE}").as_bytes());
        let broken = file("broken", odd.as_bytes());
        let read = |query: String| files(&format!("x://h?{query}")).read();
        for good in [
            format!("ca={cert}"),
            format!("ca={bundle}&cert={cert}&key={key}"),
            format!("cert={both}&key={both}"),
        ] {
            assert!(read(good.clone()).is_ok(), "{good}: {:?}", read(good.clone()).err());
        }
        for (query, why) in [
            (format!("ca={text}"), "has no certificate in PEM: "),
            (format!("ca={broken}"), "has no certificate in PEM: "),
            (format!("ca={key}"), "(it has a private key)"),
            (format!("ca={binary}"), "is no text in PEM"),
            (format!("cert={key}&key={key}"), "has no certificate"),
            (format!("cert={cert}&key={cert}"), "has no private key"),
            (format!("cert={cert}&key={encrypted}"), "is encrypted"),
        ] {
            let message = read(query.clone()).err().unwrap().to_string();
            assert!(message.contains(why) && !message.contains("hunter2"), "{query}: {message}");
        }
        assert!(files("x://h").read_with_authority().is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
