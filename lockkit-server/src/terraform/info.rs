//! The lock info: the JSON by which Terraform describes a lock to people.

use lockkit_core::ClientIdentity;
use lockkit_http::wire::Code;
use serde_json::{Map, Value};

use super::Result;
use crate::response::ErrorResponse;

/// The fields, those first that a note has to have.
const FIELDS: [&str; 7] = ["ID", "Who", "Operation", "Created", "Version", "Path", "Info"];

/// What the ids of the service's own short locks begin with.
pub(super) const OWN_ID: &str = "lockkit:";

/// The longest id. Terraform's have 36 bytes.
const LONGEST_ID: usize = 128;

/// The longest note of a claim.
const LONGEST_NOTE: usize = 1_000;

/// The body of LOCK.
pub(super) struct LockInfo {
    pub(super) id: String,
    /// The JSON as it was sent.
    pub(super) text: String,
    fields: Map<String, Value>,
}

impl LockInfo {
    /// Reads it. What Terraform could not parse, were it sent to another client, is refused.
    pub(super) fn parse(body: &[u8]) -> Result<Self> {
        let invalid = |detail: &str| ErrorResponse::new(Code::Invalid, detail);
        let text = std::str::from_utf8(body).map_err(|_| invalid("the lock info is UTF-8"))?;
        let fields: Map<String, Value> =
            serde_json::from_str(text).map_err(|_| invalid("the lock info is a JSON object"))?;
        let strings = FIELDS.iter().filter_map(|field| fields.get(*field));
        if !strings.into_iter().all(Value::is_string) {
            return Err(invalid("the fields of a lock info are strings"));
        }
        let id = text_of(&fields, "ID").to_owned();
        let plain = id.len() <= LONGEST_ID && !id.chars().any(char::is_control);
        if id.is_empty() || !plain || id.starts_with(OWN_ID) {
            return Err(invalid(
                "the ID of a lock info has 1 to 128 bytes, none a control character",
            ));
        }
        if fields.contains_key("Created") && !is_time(text_of(&fields, "Created")) {
            return Err(invalid("the time in `Created` is written as RFC 3339 has it"));
        }
        Ok(Self { id, text: text.to_owned(), fields })
    }

    /// The info of a lock that the service takes for one request.
    pub(super) fn own(id: String, operation: &str) -> Self {
        let mut fields = Map::new();
        for (field, value) in [("ID", &*id), ("Who", "lockkit serve"), ("Operation", operation)] {
            fields.insert(field.to_owned(), value.into());
        }
        let text = Value::Object(fields.clone()).to_string();
        Self { id, text, fields }
    }

    /// The process that holds the lock, as `lockkit ls` shows it: the host of `Who`, which Terraform
    /// writes as `USER@HOST`.
    pub(super) fn identity(&self) -> ClientIdentity {
        let who = text_of(&self.fields, "Who");
        let host = who.rsplit_once('@').map_or(who, |(_, host)| host);
        ClientIdentity::new(shortened(host, 255), 0, "terraform")
    }

    /// The note of the claim: as many fields as fit.
    pub(super) fn note(&self) -> String {
        let mut note = String::from("{");
        for field in FIELDS {
            let value = shortened(text_of(&self.fields, field), 200);
            let separator = if note.len() > 1 { "," } else { "" };
            let more = format!("{separator}\"{field}\":{}", Value::from(value));
            if note.len() + more.len() < LONGEST_NOTE && !text_of(&self.fields, field).is_empty() {
                note.push_str(&more);
            }
        }
        note + "}"
    }
}

/// The id in a note, where there is one.
pub(super) fn id_of_note(note: &str) -> Option<String> {
    let fields: Map<String, Value> = serde_json::from_str(note).ok()?;
    let id = text_of(&fields, "ID");
    (!id.is_empty()).then(|| id.to_owned())
}

fn text_of<'a>(fields: &'a Map<String, Value>, field: &str) -> &'a str {
    fields.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The beginning of a text, without characters that JSON would escape to many.
fn shortened(text: &str, most: usize) -> String {
    let mut short = String::new();
    for c in text.chars().filter(|c| !c.is_control()) {
        if short.len() + c.len_utf8() > most {
            break;
        }
        short.push(c);
    }
    short
}

/// Whether it is a date and a time with an offset, by its form.
fn is_time(text: &str) -> bool {
    let form = |text: &str, form: &str| {
        text.len() == form.len()
            && text.bytes().zip(form.bytes()).all(|(byte, form)| match form {
                b'0' => byte.is_ascii_digit(),
                b'+' => byte == b'+' || byte == b'-',
                other => byte == other,
            })
    };
    let Some((time, rest)) = text.split_at_checked("0000-00-00T00:00:00".len()) else {
        return false;
    };
    let rest = match rest.strip_prefix('.') {
        Some(fraction) => {
            let offset = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            if offset.len() == fraction.len() {
                return false;
            }
            offset
        }
        None => rest,
    };
    form(time, "0000-00-00T00:00:00") && (rest == "Z" || form(rest, "+00:00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<LockInfo> {
        LockInfo::parse(text.as_bytes()).ok()
    }

    #[test]
    fn what_another_client_could_not_parse_is_refused() {
        for good in [
            r#"{"ID":"a"}"#,
            r#"{"ID":"a","Created":"2026-11-25T21:45:47.123456789Z","Extra":[1]}"#,
            r#"{"ID":"a","Created":"2026-11-25T21:45:47+01:00"}"#,
        ] {
            assert_eq!(parsed(good).expect(good).text, good);
        }
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"ID":""}"#,
            r#"{"ID":7}"#,
            r#"{"ID":"a\nb"}"#,
            r#"{"ID":"lockkit:a"}"#,
            r#"{"ID":"a","Who":{}}"#,
            r#"{"ID":"a","Created":""}"#,
            r#"{"ID":"a","Created":"today"}"#,
            r#"{"ID":"a","Created":"2026-11-25T21:45:47.Z"}"#,
            r#"{"ID":"a","Created":"2026-11-25T21:45:47"}"#,
            r#"{"ID":"a","Created":"2026-11-25 21:45:47Z"}"#,
        ] {
            assert!(parsed(bad).is_none(), "{bad}");
        }
        let long = format!(r#"{{"ID":"{}"}}"#, "a".repeat(129));
        assert!(parsed(&long).is_none());
    }

    #[test]
    fn a_note_has_the_id_and_who_and_fits() {
        let path = "\\\"\u{7f}".repeat(2_000);
        let fields = serde_json::json!({
            "ID": "i".repeat(128), "Who": format!("alice@{}", "h".repeat(900)),
            "Operation": "OperationTypeApply", "Path": path, "Info": "ü".repeat(900),
        });
        let info = parsed(&fields.to_string()).unwrap();
        let note = info.note();
        assert!(note.len() <= LONGEST_NOTE && !note.chars().any(char::is_control), "{note}");
        assert_eq!(id_of_note(&note), Some(info.id.clone()));
        assert!(note.contains("\"Who\":\"alice@h") && note.contains("OperationTypeApply"));
        assert_eq!(info.identity().host.len(), 255);
        assert_eq!(id_of_note("backup of Monday"), None);
    }
}
