//! A flight as the arguments of `lockkit_carry`, and the answer as rows. No I/O.

use std::fmt::Write;
use std::ops::Range;

use super::memory::Memory;
use crate::server::dialect::{Arg, Cell, Row, hex};

/// What a step is to `lockkit_carry`.
const RELEASE: i64 = 0;

/// The row of a step that is to be asked for by itself.
pub(super) fn left_out(number: usize) -> Row {
    Row(vec![Cell::Int(number as i64), Cell::Int(9)])
}

/// A step, as its arguments say.
struct Step<'a> {
    namespace: &'a [u8],
    space: i64,
    name: &'a [u8],
    id: &'a [u8],
    what: i64,
    weight: i64,
    capacity: i64,
    hold_ttl: i64,
    wait_ttl: i64,
    identity: &'a [u8],
    note: Option<&'a [u8]>,
    /// Believed to be alone in its list, or its list to be empty.
    swift: bool,
}

impl<'a> Step<'a> {
    fn key(&self) -> [Arg<'a>; 3] {
        [Arg::Bytes(self.namespace), Arg::Int(self.space), Arg::Bytes(self.name)]
    }

    fn is_of_the_list_of(&self, other: &Self) -> bool {
        (self.namespace, self.space, self.name) == (other.namespace, other.space, other.name)
    }
}

/// Steps in the order of their keys.
pub(super) struct Flight<'a> {
    steps: Vec<Step<'a>>,
}

impl<'a> Flight<'a> {
    /// Reads the arguments of `Verb::Carry`.
    pub(super) fn new(args: &'a [Arg<'a>], alone: &Memory) -> Option<Self> {
        use Arg::{Ints, Many, Maybe};
        let [Many(namespaces), Ints(spaces), Many(names), Many(ids), Ints(whats), rest @ ..] = args
        else {
            return None;
        };
        let [Ints(weights), Ints(capacities), Ints(holds), Ints(waits), rest @ ..] = rest else {
            return None;
        };
        let [Many(identities), Maybe(notes), ..] = rest else {
            return None;
        };
        let step = |i: usize| {
            let mut step = Step {
                namespace: namespaces.get(i)?,
                space: *spaces.get(i)?,
                name: names.get(i)?,
                id: ids.get(i)?,
                what: *whats.get(i)?,
                weight: *weights.get(i)?,
                capacity: *capacities.get(i)?,
                hold_ttl: *holds.get(i)?,
                wait_ttl: *waits.get(i)?,
                identity: identities.get(i)?,
                note: *notes.get(i)?,
                swift: false,
            };
            // More than the limit may wait, but never takes a free name as it is.
            let fits = step.what == RELEASE || step.weight <= step.capacity;
            step.swift = fits && alone.is_known(&step.key());
            Some(step)
        };
        let mut steps = (0..ids.len()).map(step).collect::<Option<Vec<_>>>()?;
        // Two steps of one list are not as the list is before the flight.
        for i in 1..steps.len() {
            if steps[i].is_of_the_list_of(&steps[i - 1]) {
                (steps[i - 1].swift, steps[i].swift) = (false, false);
            }
        }
        Some(Self { steps })
    }

    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn is_one_list(&self, one: usize, other: usize) -> bool {
        self.steps[one].is_of_the_list_of(&self.steps[other])
    }

    fn swift(&self, part: &Range<usize>, is_release: bool) -> impl Iterator<Item = &Step<'a>> {
        let steps = self.steps[part.clone()].iter();
        steps.filter(move |step| step.swift && (step.what == RELEASE) == is_release)
    }

    /// What is handed to the procedure, of some of the steps.
    pub(super) fn arguments(&self, part: &Range<usize>) -> Arguments {
        let is_any = self.steps[part.clone()].iter().any(|step| step.swift);
        Arguments {
            held: condition(self.swift(part, true)),
            helds: self.swift(part, true).count() as i64,
            free: condition(self.swift(part, false)),
            frees: self.swift(part, false).count() as i64,
            rows: rows(self.swift(part, false)),
            rest: self.packed(part, |step| !step.swift),
            every: if is_any { self.packed(part, |_| true) } else { Vec::new() },
        }
    }

    fn packed(&self, part: &Range<usize>, which: impl Fn(&Step<'a>) -> bool) -> Vec<u8> {
        let mut packed = Vec::new();
        for (number, step) in part.clone().zip(&self.steps[part.clone()]) {
            if !which(step) {
                continue;
            }
            let Step { namespace, space, name, id, what, .. } = step;
            let (namespaces, names) = (namespace.len(), name.len());
            let head = format!("{what:1}{number:05}{space:1}{namespaces:03}{names:03}");
            packed.extend([head.as_bytes(), namespace, name, id].concat());
            if *what != RELEASE {
                let identities = step.identity.len();
                let notes = step.note.map_or("-".repeat(10), |note| format!("{:010}", note.len()));
                let Step { weight, capacity, hold_ttl, wait_ttl, .. } = step;
                let head = format!(
                    "{weight:010}{capacity:010}{hold_ttl:019}{wait_ttl:019}{identities:010}{notes}"
                );
                let note = step.note.unwrap_or_default();
                packed.extend([head.as_bytes(), step.identity, note].concat());
            }
        }
        packed
    }

    /// The rows of `Verb::Carry`, from that of the procedure for these steps. Remembers whose lists are
    /// free, or have one claim.
    pub(super) fn rows(
        &self,
        answer: &Row,
        part: &Range<usize>,
        alone: &Memory,
    ) -> Option<Vec<Row>> {
        let (swift, now) = (answer.int(0)? != 0, answer.int(1)?);
        let told = str::from_utf8(answer.bytes(2)?).ok()?;
        let mut rows = Vec::with_capacity(part.len());
        let steps = part.clone().zip(&self.steps[part.clone()]);
        for (number, step) in steps.filter(|(_, step)| step.swift) {
            match swift {
                true => rows.push(step.done(number, now)),
                false => alone.forget(&step.key()),
            }
        }
        for told in told.split_terminator(';') {
            let told: Vec<_> = told.split(',').collect();
            let [number, outcome, token, ttl, ahead, look, is_alone, woken] = told[..] else {
                return None;
            };
            let number: usize = number.parse().ok()?;
            let step = self.steps.get(number)?;
            if outcome == "9" {
                rows.push(left_out(number));
                continue;
            }
            if outcome == "1" && is_alone == "1" {
                alone.learn(&step.key());
            }
            let mut cells = vec![Cell::Int(number as i64), cell(outcome)?];
            if step.what != RELEASE {
                cells.extend([cell(token)?, cell(ttl)?, cell(ahead)?, cell(look)?]);
            }
            cells.push(Cell::Bytes(unhex(woken)?));
            rows.push(Row(cells));
        }
        Some(rows)
    }
}

impl Step<'_> {
    /// The row of a swift step.
    fn done(&self, number: usize, now: i64) -> Row {
        let done = match self.what {
            RELEASE => Row::released(),
            _ => Row::granted(now, self.hold_ttl),
        };
        Row([vec![Cell::Int(number as i64)], done.0].concat())
    }
}

/// The arguments of `lockkit_carry`.
pub(super) struct Arguments {
    held: String,
    helds: i64,
    free: String,
    frees: i64,
    rows: String,
    rest: Vec<u8>,
    every: Vec<u8>,
}

impl Arguments {
    pub(super) fn bind(&self) -> [Arg<'_>; 7] {
        [
            Arg::Bytes(self.held.as_bytes()),
            Arg::Int(self.helds),
            Arg::Bytes(self.free.as_bytes()),
            Arg::Int(self.frees),
            Arg::Bytes(self.rows.as_bytes()),
            Arg::Bytes(&self.rest),
            Arg::Bytes(&self.every),
        ]
    }
}

/// A condition for the rows of these steps' names; for releases, with the ids that stand there. Each of
/// the ids is a claim of one list only.
fn condition<'a>(steps: impl Iterator<Item = &'a Step<'a>>) -> String {
    let steps: Vec<_> = steps.collect();
    let mut text = String::with_capacity(96 * steps.len());
    for list in steps.chunk_by(|a, b| (a.namespace, a.space) == (b.namespace, b.space)) {
        let begin = if text.is_empty() { "" } else { " OR " };
        let (namespace, space) = (hex(list[0].namespace), list[0].space);
        let names = literals(list.iter().map(|step| step.name));
        let _ = write!(
            text,
            "{begin}namespace = x'{namespace}' AND space = {space} AND name IN ({names})"
        );
        if list[0].what == RELEASE {
            let _ = write!(text, " AND id IN ({})", literals(list.iter().map(|step| step.id)));
        }
    }
    text
}

fn literals<'a>(bytes: impl Iterator<Item = &'a [u8]>) -> String {
    let literals: Vec<_> = bytes.map(|bytes| format!("x'{}'", hex(bytes))).collect();
    literals.join(",")
}

/// What the swift acquires write, as VALUES.
fn rows<'a>(steps: impl Iterator<Item = &'a Step<'a>>) -> String {
    let mut text = String::new();
    for step in steps {
        let begin = if text.is_empty() { "" } else { "," };
        let Step { space, weight, capacity, hold_ttl, wait_ttl, .. } = step;
        let [namespace, name, id] = [step.namespace, step.name, step.id].map(hex);
        let identity = hex(step.identity);
        let note = step.note.map_or("NULL".to_owned(), |note| format!("x'{}'", hex(note)));
        let _ = write!(
            text,
            "{begin}(x'{namespace}',{space},x'{name}',x'{id}',{weight},{capacity},{hold_ttl},\
             {wait_ttl},x'{identity}',{note},0)"
        );
    }
    text
}

fn cell(text: &str) -> Option<Cell> {
    match text {
        "" => Some(Cell::Null),
        text => text.parse().ok().map(Cell::Int),
    }
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let pairs = (0..digits.len() / 2).map(|i| digits.get(2 * i..2 * i + 2));
    pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: [[u8; 2]; 4] = [[1; 2], [2; 2], [3; 2], [4; 2]];

    /// A release of `a`, a try of `b`, an acquire of `c` with a note, and another one of `c`.
    fn args() -> Vec<Arg<'static>> {
        vec![
            Arg::Many(vec![b"n"; 4]),
            Arg::Ints(vec![0; 4]),
            Arg::Many(vec![b"a", b"b", b"c", b"c"]),
            Arg::Many(IDS.iter().map(|id| id.as_slice()).collect()),
            Arg::Ints(vec![0, 2, 1, 1]),
            Arg::Ints(vec![1; 4]),
            Arg::Ints(vec![5; 4]),
            Arg::Ints(vec![30; 4]),
            Arg::Ints(vec![10; 4]),
            Arg::Many(vec![b"{}"; 4]),
            Arg::Maybe(vec![None, Some(b"'"), Some(b"?"), None]),
            Arg::Bytes(b"client"),
        ]
    }

    fn knows(names: &[&'static [u8]]) -> Memory {
        let memory = Memory::default();
        for name in names {
            memory.learn(&[Arg::Bytes(b"n"), Arg::Int(0), Arg::Bytes(name)]);
        }
        memory
    }

    #[test]
    fn what_is_known_is_text_of_hexadecimal_digits_and_the_rest_is_packed() {
        let args = args();
        let packed = Flight::new(&args, &knows(&[b"a", b"b", b"c"])).unwrap().arguments(&(0..4));
        let held = "namespace = x'6e' AND space = 0 AND name IN (x'61') AND id IN (x'0101')";
        assert_eq!((packed.held.as_str(), packed.helds), (held, 1));
        assert_eq!(packed.free, "namespace = x'6e' AND space = 0 AND name IN (x'62')");
        assert_eq!(packed.frees, 1);
        assert_eq!(packed.rows, "(x'6e',0,x'62',x'0202',1,5,30,10,x'7b7d',x'27',0)");
        // Two steps of one list go one after the other.
        let times = "00000000000000000300000000000000000010";
        let first =
            format!("1000020001001nc\x03\x0300000000010000000005{times}00000000020000000001{{}}?");
        let second =
            format!("1000030001001nc\x04\x0400000000010000000005{times}0000000002----------{{}}");
        assert_eq!(String::from_utf8(packed.rest).unwrap(), first + &second);
        assert!(packed.every.starts_with(b"0000000001001na\x01\x012000010001001nb"));
        let nothing = Flight::new(&args, &Memory::default()).unwrap().arguments(&(0..4));
        assert_eq!((nothing.helds, nothing.frees, nothing.every.len()), (0, 0, 0));
    }

    #[test]
    fn the_answer_is_a_row_for_each_step() {
        let args = args();
        let (memory, told) =
            (knows(&[b"a", b"b"]), b"00002,1,70,30,0,,1,;00003,2,71,30,1,9,0,0A0b;");
        let flight = Flight::new(&args, &memory).unwrap();
        let answer = |swift, told: &[u8]| {
            Row(vec![Cell::Int(swift), Cell::Int(99), Cell::Bytes(told.to_vec())])
        };
        let ints = |cells: &[i64]| cells.iter().map(|n| Cell::Int(*n)).collect::<Vec<_>>();
        let row = |cells: &[i64], rest: [Cell; 2]| Row([ints(cells), rest.to_vec()].concat());
        let rows = flight.rows(&answer(1, told), &(0..4), &memory).unwrap();
        assert_eq!(rows[0], Row([ints(&[0, 1]), vec![Cell::Null]].concat()));
        assert_eq!(rows[1], row(&[1, 1, 99, 30, 0], [Cell::Null, Cell::Null]));
        assert_eq!(rows[2], row(&[2, 1, 70, 30, 0], [Cell::Null, Cell::Bytes(Vec::new())]));
        assert_eq!(rows[3], row(&[3, 2, 71, 30, 1], [Cell::Int(9), Cell::Bytes(vec![10, 11])]));
        let known = |name: &'static [u8]| {
            memory.is_known(&[Arg::Bytes(b"n"), Arg::Int(0), Arg::Bytes(name)])
        };
        assert!(known(b"a") && known(b"c"));
        // Not as they were remembered; the release found its claim, and the other one a holder.
        let told = b"00000,1,,,,,1,;00001,0,,,0,,0,;00002,9,,,,,,;00003,9,,,,,,;";
        let rows = flight.rows(&answer(0, told), &(0..4), &memory).unwrap();
        assert_eq!(rows.len(), 4);
        assert!(known(b"a") && !known(b"b"));
        assert_eq!(flight.rows(&answer(1, b"00002,1;"), &(0..4), &memory), None);
    }
}
