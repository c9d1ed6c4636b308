//! Advice: what to do about a connection that failed, where the words of the failure tell it, and what
//! to write instead of options of flock.

/// The remedy, to be put behind the sentence; nothing where none is known. `url` may have a password,
/// which is not repeated.
pub(crate) fn on_connecting(url: &str, sentence: &str) -> &'static str {
    let says = |words: &[&str]| words.iter().any(|word| sentence.contains(word));
    let scheme = url.split(':').next().unwrap_or_default();
    if says(&["permission denied for", "command denied to user"]) {
        // Where the driver knows what it is, it says so itself.
        return match says(&["lockkit schema"]) {
            true => "",
            false => "; `lockkit schema` prints the GRANTs that this user needs",
        };
    }
    if says(&["UnknownIssuer", "unable to get local issuer", "BadSignature"]) {
        return match url.contains("ca=") {
            true => {
                "; another authority signed the server's certificate: name the file with that one's \
                 as ca=FILE"
            }
            false => {
                "; if a private authority signed the server's certificate, add ?ca=FILE with that \
                 authority's"
            }
        };
    }
    if says(&["CertificateRequired", "certificate required"]) {
        return "; the server asks for a client certificate: add cert=FILE and key=FILE";
    }
    if says(&["NotValidForName"]) {
        return "; use a host name that the server's certificate is for";
    }
    // A reset or a silence may have any cause.
    let broken = ["reset by peer", "Broken pipe", "closed", "end of file"];
    let silent = ["did not answer", "timed out", "deadline has elapsed"];
    match scheme {
        "redis" | "redis+sentinel" | "redis+cluster" if says(&broken) => {
            "; perhaps the server expects TLS on this port: use rediss://"
        }
        "rediss" | "rediss+sentinel" | "rediss+cluster" if says(&broken) || says(&silent) => {
            "; perhaps the server speaks no TLS on this port: use redis://"
        }
        "etcd" if says(&broken) => "; perhaps the server expects TLS on this port: use etcds://",
        "zk" if says(&broken) || says(&silent) => {
            "; perhaps the server expects TLS on this port: use zks://"
        }
        "http" if says(&["invalid HTTP version", "HTTP", "reset by peer"]) => {
            "; perhaps the server expects TLS on this port: use https://"
        }
        "https" if says(&["InvalidContentType", "corrupt message"]) || says(&silent) => {
            "; perhaps the server speaks no TLS on this port: use http://"
        }
        _ => "",
    }
}

/// What to write instead of an option of flock(1) that people type out of habit; `None` for any other.
/// Those that mean the same here are options of lockkit.
pub(crate) fn instead_of_flock(option: &str) -> Option<&'static str> {
    Some(match option {
        "-x" | "-e" | "--exclusive" => {
            "a lock is exclusive unless --shared is given, so leave it out"
        }
        "--nb" | "--nonblock" | "--nonblocking" => "use --try",
        "--timeout" => "use --wait",
        "--conflict-exit-code" => "use --busy-exit-code",
        "-o" | "--close" => {
            "use --leftovers=leave, with which processes that the command leaves behind hold no lock"
        }
        "-F" | "--no-fork" => {
            "lockkit stays to renew the lock, so leave it out; see also --leftovers=leave"
        }
        "-u" | "--unlock" => {
            "a lock is released when its command ends; `lockkit release` releases one of `acquire`"
        }
        _ => return None,
    })
}
