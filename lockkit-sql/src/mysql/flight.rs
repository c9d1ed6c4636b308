//! A flight as the arguments of `lockkit_carry`, and the answer as rows. No I/O.

use std::fmt::Write;

use super::memory::Memory;
use super::statement::hex;
use crate::server::dialect::{Arg, Cell, Row};

/// What a step is to `lockkit_carry`.
const RELEASE: i64 = 0;

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

    fn swift(&self, is_release: bool) -> impl Iterator<Item = &Step<'a>> {
        self.steps.iter().filter(move |step| step.swift && (step.what == RELEASE) == is_release)
    }

    /// What is handed to the procedure.
    pub(super) fn arguments(&self) -> Arguments {
        let every = |_: &&(usize, &Step<'_>)| true;
        let is_any = self.steps.iter().any(|step| step.swift);
        Arguments {
            held: condition(self.swift(true)),
            helds: self.swift(true).count() as i64,
            free: condition(self.swift(false)),
            frees: self.swift(false).count() as i64,
            rows: rows(self.swift(false)),
            rest: self.packed(|(_, step)| !step.swift),
            every: if is_any { self.packed(every) } else { Vec::new() },
        }
    }

    fn packed(&self, which: impl Fn(&&(usize, &Step<'a>)) -> bool) -> Vec<u8> {
        let mut packed = Vec::new();
        let steps: Vec<_> = self.steps.iter().enumerate().collect();
        for (number, step) in steps.iter().filter(|step| which(step)) {
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

    /// The rows of `Verb::Carry`, from that of the procedure. Remembers whose lists are free, or have one
    /// claim.
    pub(super) fn rows(&self, answer: &Row, alone: &Memory) -> Option<Vec<Row>> {
        let (swift, now) = (answer.int(0)? != 0, answer.int(1)?);
        let told = str::from_utf8(answer.bytes(2)?).ok()?;
        let mut rows = Vec::with_capacity(self.steps.len());
        for (number, step) in self.steps.iter().enumerate().filter(|(_, step)| step.swift) {
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
        let mut cells = vec![Cell::Int(number as i64), Cell::Int(1)];
        if self.what != RELEASE {
            cells.extend([Cell::Int(now), Cell::Int(self.hold_ttl), Cell::Int(0), Cell::Null]);
        }
        cells.push(Cell::Null);
        Row(cells)
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
