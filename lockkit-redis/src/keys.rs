//! What things are called in Redis: keys with their hash tags, channels, and the text in which a
//! claim is written. The one place that knows; the scripts say the same in their headers.

use std::borrow::Cow;
use std::sync::Arc;

use lockkit_core::driver::{Patience, RegisterKey};
use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};

/// How many hash tags there are, and so counters of tokens. All keys of one lock bear the same, so
/// that a cluster keeps them on one node. Never to be changed: two programs that disagree about it
/// would have two locks of one name.
pub(crate) const BUCKETS: usize = 256;

/// The bucket of a lock or register: FNV-1a over its space, its namespace and its name, mixed once
/// more so that names which differ in their last letters only are spread like any others.
pub(crate) fn bucket(space: &str, namespace: &Namespace, name: &Name) -> usize {
    let parts = [space.as_bytes(), namespace.as_str().as_bytes(), name.as_str().as_bytes()];
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        for byte in part.iter().chain(&[0]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
    }
    (hash ^ (hash >> 33)) as usize % BUCKETS
}

/// What is in the keys of registers where those of locks have the [`word`] of their space.
pub(crate) const REGISTER: &str = "register";

/// What is in the keys of a space.
pub(crate) fn word(space: Space) -> &'static str {
    match space {
        Space::Lock => "lock",
        Space::Semaphore => "sem",
    }
}

/// The key of a lock, and its bucket: `lockkit:lock:{17}:NAMESPACE:NAME`.
pub(crate) fn lock(key: &Key) -> (String, usize) {
    let word = word(key.space);
    let bucket = bucket(word, &key.namespace, &key.name);
    let (namespace, name) = (escaped(&key.namespace), key.name.as_str());
    // By hand, as all that is written for every acquire and release: formatting takes longer.
    let mut text = String::with_capacity(24 + namespace.len() + name.len());
    for part in ["lockkit:", word, ":{"] {
        text.push_str(part);
    }
    push_number(&mut text, bucket as u64, 1);
    for part in ["}:", &*namespace, ":", name] {
        text.push_str(part);
    }
    (text, bucket)
}

/// The key of a register.
pub(crate) fn register(at: &RegisterKey) -> String {
    let bucket = bucket(REGISTER, &at.namespace, &at.name);
    format!("lockkit:{REGISTER}:{{{bucket}}}:{}:{}", escaped(&at.namespace), at.name)
}

/// The counter of tokens of a bucket.
pub(crate) fn counter(bucket: usize) -> String {
    let mut text = String::with_capacity(24);
    text.push_str("lockkit:tokens:{");
    push_number(&mut text, bucket as u64, 1);
    text.push('}');
    text
}

/// A key that never exists, beside one that has a hash tag.
pub(crate) fn never(key: &str) -> Option<String> {
    let (_, rest) = key.split_once('{')?;
    let (bucket, _) = rest.split_once('}')?;
    Some(format!("lockkit:never:{{{bucket}}}"))
}

/// The slot in which a cluster keeps a key: CRC-16 (XMODEM) of its hash tag, or of all of it.
pub(crate) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key);
    let shift = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
    let crc = hashed.bytes().fold(0, |crc, byte| (0..8).fold(crc ^ (u16::from(byte) << 8), shift));
    crc % 16_384
}

/// The version of the format. It has no hash tag, so it is in one slot of a cluster.
pub(crate) const FORMAT: &str = "lockkit:format";

/// The token base of a namespace.
pub(crate) fn base(namespace: &Namespace) -> String {
    format!("lockkit:base:{}", escaped(namespace))
}

/// Where it is stored with which neighbours a namespace shares its locks.
pub(crate) fn neighbours(namespace: &Namespace) -> String {
    format!("lockkit:neighbours:{}", escaped(namespace))
}

/// The channel of a client.
pub(crate) fn channel(client: &str) -> String {
    format!("lockkit:wake:{client}")
}

/// The pattern of the keys of this kind and namespace, for `SCAN`.
pub(crate) fn pattern(word: &str, namespace: &Namespace, prefix: &str) -> String {
    let literal = format!("{}:{prefix}", escaped(namespace));
    let mut pattern = format!("lockkit:{word}:{{*}}:");
    for c in literal.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('*');
    pattern
}

/// The pattern of the keys of all locks and registers. (Of others too: see [`namespace_in`].)
pub(crate) const ANYTHING: &str = "lockkit:*:{*}:*";

/// The name in a key of this kind and namespace; `None` for a key of another kind.
pub(crate) fn name_in(key: &str, word: &str, namespace: &Namespace) -> Option<Name> {
    let rest = after_bucket(key, word)?;
    let name = rest.strip_prefix(&*escaped(namespace))?.strip_prefix(':')?;
    Name::new(name).ok()
}

/// The namespace in the key of a lock or a register; `None` for a key of another kind.
pub(crate) fn namespace_in(key: &str) -> Option<Namespace> {
    let words = [word(Space::Lock), word(Space::Semaphore), REGISTER];
    let rest = words.into_iter().find_map(|word| after_bucket(key, word))?;
    let (namespace, _) = rest.split_once(':')?;
    Namespace::new(namespace.replace("%3A", ":").replace("%25", "%")).ok()
}

/// What is behind the bucket in a key of this kind.
fn after_bucket<'a>(key: &'a str, word: &str) -> Option<&'a str> {
    let rest = key.strip_prefix("lockkit:")?.strip_prefix(word)?.strip_prefix(":{")?;
    rest.split_once("}:").map(|(_, rest)| rest)
}

/// A namespace ends at the next colon in a key, so it has none itself.
fn escaped(namespace: &Namespace) -> Cow<'_, str> {
    let text = namespace.as_str();
    match text.contains(['%', ':']) {
        true => text.replace('%', "%25").replace(':', "%3A").into(),
        false => text.into(),
    }
}

/// A token, with as many digits as the greatest has, so that text compares as the numbers do.
pub(crate) fn token(token: u64) -> String {
    let mut text = String::with_capacity(20);
    push_number(&mut text, token, 19);
    text
}

/// A claim as the string that it is while it is alone, behind its token:
/// ` ID HOLD_MS WAIT_MS CLIENT LABEL`, the label being `PID<tab>HOST<tab>PROGRAM[<tab>NOTE]`.
pub(crate) fn claim(claim: &Claim, client: &str) -> String {
    let ClientIdentity { host, pid, program, .. } = &*claim.identity;
    let (hold, wait) = (millis(claim.hold_ttl), millis(claim.wait_ttl));
    let (host, program) = (one_word(host), one_word(program));
    let id = claim.id.to_hex();
    let mut text = String::with_capacity(192); // room for all of it, mostly
    text.push(' ');
    text.push_str(&id);
    text.push(' ');
    for millis in [hold, wait] {
        // Of one width, mostly: pass.lua is faster so.
        push_number(&mut text, millis, 9);
        text.push(' ');
    }
    text.push_str(client);
    text.push(' ');
    push_number(&mut text, u64::from(*pid), 1);
    for part in ["\t", &*host, "\t", &*program] {
        text.push_str(part);
    }
    if let Some(note) = &claim.note {
        text.push('\t');
        text.push_str(note);
    }
    text
}

/// The label of a claim, read back: what is shown to people.
pub(crate) fn decode_label(text: &str) -> (ClientIdentity, Option<String>) {
    let mut parts = text.splitn(4, '\t');
    let pid = parts.next().and_then(|pid| pid.parse().ok()).unwrap_or_default();
    let host = parts.next().unwrap_or_default().to_owned();
    let program = parts.next().unwrap_or_default().to_owned();
    (ClientIdentity::new(host, pid, program), parts.next().map(str::to_owned))
}

/// The options of an acquire: `[t][ MODE WEIGHT CAPACITY]`. Empty for the usual: a claim that waits and is
/// exclusive.
pub(crate) fn acquire_options(claim: &Claim, patience: Patience) -> String {
    let mut options = String::new();
    if patience == Patience::Try {
        options.push('t');
    }
    let letter = match claim.mode {
        Mode::Exclusive => return options,
        Mode::Shared => 's',
        Mode::Permits { .. } => 'p',
    };
    options + &format!(" {letter} {} {}", claim.mode.weight(), claim.mode.capacity())
}

/// The id and the two ttls in ms, by which scripts know a claim.
pub(crate) fn claim_args(claim: &Claim) -> [String; 3] {
    let (hold, wait) = (millis(claim.hold_ttl), millis(claim.wait_ttl));
    [claim.id.to_hex(), hold.to_string(), wait.to_string()]
}

/// The keys and arguments of `renew.lua` for these claims.
pub(crate) fn renewal_args(claims: &[Arc<Claim>]) -> (Vec<String>, Vec<String>) {
    let locks = claims.iter().map(|claim| lock(&claim.key).0);
    (locks.collect(), claims.iter().flat_map(|claim| claim_args(claim)).collect())
}

/// Whole milliseconds, rounded up: a lease is never shorter than what was asked for.
pub(crate) fn millis(ttl: std::time::Duration) -> u64 {
    let more = u64::from(ttl.subsec_nanos().div_ceil(1_000_000));
    ttl.as_secs().saturating_mul(1_000).saturating_add(more)
}

/// Writes a number with zeros in front, if it takes some, to have so many digits.
fn push_number(text: &mut String, number: u64, least: usize) {
    let (mut digits, mut rest) = ([b'0'; 20], number);
    let mut first = digits.len();
    while rest > 0 || first > digits.len() - least {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text.extend(digits[first..].iter().map(|digit| char::from(*digit)));
}

fn one_word(text: &str) -> Cow<'_, str> {
    let plain = |byte: u8| (b' '..=b'~').contains(&byte); // nearly always, and ten times as fast
    match !text.bytes().all(plain) && text.contains(char::is_control) {
        true => text.replace(char::is_control, "?").into(),
        false => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, name: &str) -> Key {
        Key::new(Namespace::new(namespace).unwrap(), Space::Lock, Name::new(name).unwrap())
    }

    #[test]
    fn namespaces_and_names_never_run_into_each_other() {
        let (a, _) = lock(&key("a:b", "c"));
        let (b, _) = lock(&key("a", "b:c"));
        assert_ne!(a.split_once("}:").unwrap().1, b.split_once("}:").unwrap().1);
    }

    #[test]
    fn numbered_names_are_spread_over_all_buckets() {
        let mut counts = [0; BUCKETS];
        for i in 0..25_600 {
            counts[lock(&key("shop", &format!("invoice/{i}"))).1] += 1;
        }
        // A hundred are expected in each; ten is the standard deviation.
        assert!(counts.iter().all(|count| (50..150).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_bucket_is_what_it_always_was() {
        // Two programs that disagree would have two locks of one name.
        assert_eq!(lock(&key("shop", "invoice/42")).0, "lockkit:lock:{91}:shop:invoice/42");
    }

    #[test]
    fn a_slot_is_that_of_the_hash_tag() {
        // The check value of CRC-16/XMODEM is 0x31C3.
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("lockkit:lock:{123456789}:shop:{x}"), 0x31c3);
        assert_ne!(slot("{}123456789"), 0x31c3);
    }

    #[test]
    fn a_name_is_read_back_from_its_key() {
        for (namespace, name) in
            [("", "a"), ("s:h%p", "{x}:y"), ("%3A", "a"), ("", ":"), ("x", "}:x:")]
        {
            let key = key(namespace, name);
            let (text, _) = lock(&key);
            assert_eq!(
                name_in(&text, word(Space::Lock), &key.namespace),
                Some(key.name.clone()),
                "{text}"
            );
            assert_eq!(name_in(&text, word(Space::Semaphore), &key.namespace), None);
            assert_eq!(namespace_in(&text), Some(key.namespace));
        }
        let (text, _) = lock(&key("shop", "a"));
        assert_eq!(name_in(&text, "lock", &Namespace::default()), None);
        let (kind, _) = text.split_once(":{").unwrap();
        let beside = text.replace(kind, "lockkit:lock.broken");
        assert_eq!(name_in(&beside, "lock", &Namespace::new("shop").unwrap()), None);
        assert_eq!(namespace_in(&beside), None);
        assert_eq!(namespace_in(&counter(7)), None);
    }

    #[test]
    fn the_key_that_never_exists_has_the_hash_tag_of_the_others() {
        let (text, bucket) = lock(&key("shop", "{x}:y"));
        assert_eq!(never(&text), Some(format!("lockkit:never:{{{bucket}}}")));
        assert_eq!(never(&base(&Namespace::new("shop").unwrap())), None);
    }

    #[test]
    fn what_a_claim_shows_is_read_back() {
        let identity = ClientIdentity::new("h\tx", 7, "a b");
        let ttl = std::time::Duration::from_micros(1_500);
        let claim_ = Claim::new(key("", "a"), Mode::Exclusive, ttl, ttl, identity.into())
            .with_note(Some("why not".into()));
        let text = claim(&claim_, "c1");
        let rest =
            text.strip_prefix(&format!(" {} 000000002 000000002 c1 ", claim_.id.to_hex())).unwrap();
        let (identity, note) = decode_label(rest);
        assert_eq!((identity.host.as_str(), identity.pid), ("h?x", 7));
        assert_eq!((identity.program.as_str(), note.as_deref()), ("a b", Some("why not")));
    }

    #[test]
    fn numbers_are_written_in_full() {
        for number in [0, 9, 10, 255, 30_000, u64::MAX] {
            let mut text = "x".to_owned();
            push_number(&mut text, number, 1);
            assert_eq!(text, format!("x{number}"));
            assert_eq!(token(number), format!("{number:019}"));
        }
    }

    #[test]
    fn a_lease_is_rounded_up_to_milliseconds() {
        use std::time::Duration;
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_micros(1_999_001)), 2_000);
        assert_eq!(millis(Duration::from_secs(30)), 30_000);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }
}
