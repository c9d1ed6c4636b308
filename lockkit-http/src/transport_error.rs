//! Why a server gave no answer, and whether asking again may help.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use lockkit_core::Error;
use lockkit_core::driver::locked;
use rustls::AlertDescription;
use tokio::time::Instant;

use crate::BACKEND;

/// Why one server gave no answer.
#[derive(Debug)]
pub(crate) struct TransportError {
    pub(crate) kind: ErrorKind,
    /// The server and the reason, in one sentence.
    pub(crate) what: String,
}

/// What can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// The request did not leave: another server can be asked, or this one again.
    NotSent,
    /// The request may have been carried out.
    Ambiguous,
    /// As `NotSent`; the host's name is not known. It may be soon: names of containers appear late.
    UnknownName,
    /// As `NotSent`; the certificate or the protocol is not that of this service, and stays so until
    /// an operator corrects the URL or the server.
    Misconfigured,
}

/// What came instead of HTTP: the first bytes of a connection.
#[derive(Debug)]
pub(crate) struct NotHttp(pub(crate) Vec<u8>);

impl fmt::Display for NotHttp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A TLS record of type alert or handshake.
        if matches!(self.0[..], [0x15 | 0x16, 0x03, ..]) {
            return f.write_str("its answer is TLS and no plain HTTP: use https://");
        }
        write!(f, "its answer is no HTTP (it begins with {:?})", self.0.escape_ascii().to_string())
    }
}

impl StdError for NotHttp {}

impl TransportError {
    pub(crate) fn of(server: &str, error: &hyper_util::client::legacy::Error) -> Self {
        let kind = if is_misconfigured(error) {
            ErrorKind::Misconfigured
        } else if !error.is_connect() {
            ErrorKind::Ambiguous
        } else if is_unknown_name(error) {
            ErrorKind::UnknownName
        } else {
            ErrorKind::NotSent
        };
        let hint = if kind == ErrorKind::UnknownName { " (is the name right?)" } else { "" };
        Self { kind, what: format!("{server}: {}{hint}", chain(error)) }
    }

    pub(crate) fn ambiguous(server: &str, why: impl fmt::Display) -> Self {
        Self { kind: ErrorKind::Ambiguous, what: format!("{server}: {why}") }
    }

    pub(crate) fn retryable(self) -> Error {
        Error::retryable(BACKEND, self.what)
    }
}

/// The errors from the first to its last cause.
fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| {
        // An I/O error hides the error that it was made of behind that error's own cause.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        inner.map(|inner| inner as &(dyn StdError + 'static)).or_else(|| error.source())
    })
}

/// An error with its causes, which the client crate's message leaves out.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut said: Vec<String> = Vec::new();
    for cause in causes(error) {
        let text = cause.to_string();
        if said.last() != Some(&text) {
            said.push(text);
        }
    }
    said.join(": ")
}

/// Whether the two ends do not speak the same protocol, or one refuses the other's certificate.
fn is_misconfigured(error: &hyper_util::client::legacy::Error) -> bool {
    causes(error).any(|cause| {
        if cause.is::<NotHttp>() {
            return true;
        }
        match cause.downcast_ref::<rustls::Error>() {
            // Comes after the handshake as well, since in TLS 1.3 the client is done first.
            Some(rustls::Error::AlertReceived(alert)) => is_refusal(*alert),
            // Later, a message that is damaged is the network's fault.
            Some(
                rustls::Error::InvalidCertificate(_)
                | rustls::Error::InvalidMessage(_)
                | rustls::Error::PeerIncompatible(_)
                | rustls::Error::UnsupportedNameType,
            ) => error.is_connect(),
            _ => false,
        }
    })
}

/// Whether the other end says that certificates or versions do not fit.
fn is_refusal(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::HandshakeFailure
            | Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::ProtocolVersion
            | Alert::InsufficientSecurity
            | Alert::UnrecognisedName
    )
}

/// Whether the resolver says that there is no such name, rather than that it cannot tell.
fn is_unknown_name(error: &(dyn StdError + 'static)) -> bool {
    let said = chain(error);
    // The numbers of getaddrinfo do not get through the standard library; these are what the C
    // libraries say for EAI_AGAIN.
    let temporary = ["Temporary failure", "Try again"].iter().any(|text| said.contains(text));
    said.contains("dns error") && !temporary
}

/// How long a name may be unknown before that is taken for a mistake.
const NAMES_APPEAR_WITHIN: Duration = Duration::from_secs(30);

/// Since when no name of a service has been known, by its servers. For the whole process, since a
/// program that repeats `connect` begins with a new connection object each time.
static UNKNOWN_SINCE: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());

/// The error when no server took the request: `failures` has one of each.
pub(crate) fn of_all(failures: Vec<TransportError>, has_answered: bool) -> Error {
    let all = |kind| failures.iter().all(|failure| failure.kind == kind);
    let names_unknown = all(ErrorKind::UnknownName);
    let misconfigured = all(ErrorKind::Misconfigured);
    let what: Vec<_> = failures.iter().map(|failure| failure.what.as_str()).collect();
    let what = what.join("; ");
    let gave_up_hope = !has_answered && names_unknown && {
        let mut since = locked(&UNKNOWN_SINCE);
        since.entry(what.clone()).or_insert_with(Instant::now).elapsed() >= NAMES_APPEAR_WITHIN
    };
    // Once there was an answer the URL is right, and what fails now is a certificate that is being
    // exchanged, or one bad server behind a balancer: no reason to end an hour's wait.
    match gave_up_hope || (misconfigured && !has_answered) {
        true => Error::permanent(BACKEND, what),
        false => Error::retryable(BACKEND, what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(kind: ErrorKind) -> TransportError {
        TransportError { kind, what: format!("http://{kind:?}.example: no") }
    }

    #[test]
    fn what_somebody_has_to_correct_is_permanent_only_if_it_is_so_everywhere_from_the_start() {
        let wrong = || failure(ErrorKind::Misconfigured);
        assert!(!of_all(vec![wrong(), wrong()], false).is_retryable());
        assert!(of_all(vec![wrong(), wrong()], true).is_retryable(), "it was right once");
        for other in [ErrorKind::NotSent, ErrorKind::UnknownName] {
            assert!(of_all(vec![wrong(), failure(other)], false).is_retryable(), "{other:?}");
        }
        assert!(of_all(vec![failure(ErrorKind::NotSent)], false).is_retryable());
        let said = of_all(vec![wrong(), failure(ErrorKind::NotSent)], false).to_string();
        for server in ["http://Misconfigured.example", "http://NotSent.example"] {
            assert!(said.contains(server), "{said}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_nobody_knows_for_half_a_minute_is_a_mistake() {
        let unknown = || vec![failure(ErrorKind::UnknownName)];
        assert!(of_all(unknown(), false).is_retryable());
        tokio::time::advance(NAMES_APPEAR_WITHIN - Duration::from_secs(1)).await;
        assert!(of_all(unknown(), false).is_retryable());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!of_all(unknown(), false).is_retryable());
        assert!(of_all(unknown(), true).is_retryable(), "it was known once");
    }

    #[test]
    fn a_tls_port_is_told_from_another_protocol() {
        let tls = NotHttp(vec![0x15, 0x03, 0x03, 0, 2]).to_string();
        assert!(tls.contains("https://"), "{tls}");
        let other = NotHttp(b"SSH-2.0\r\n".to_vec()).to_string();
        assert!(other.contains("SSH-2.0"), "{other}");
    }
}
