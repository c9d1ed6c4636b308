//! The state and its picture, without a terminal and without a backend.

use std::time::Duration;

use lockkit::driver::BreakMode;
use lockkit::state::{ClaimState, LockState};
use lockkit::{ClientIdentity, Key as LockKey, Mode, Name, Namespace, Space, Token};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::draw::{Palette, draw, short};
use super::keys::Key;
use super::model::{Effect, Model, Prompt, SortKey, View};

const SECOND: Duration = Duration::from_secs(1);

fn claim(token: u64, host: &str, held: Option<u64>, queued: u64) -> ClaimState {
    let who = ClientIdentity::new(host, 7, "ada:backup");
    let mut claim = ClaimState::new(Token::new(token).unwrap(), Mode::Exclusive, who);
    claim.held_for = held.map(Duration::from_secs);
    claim.queued_for = Duration::from_secs(queued);
    claim.expires_in = 20 * SECOND;
    claim
}

fn lock(name: &str, line: Vec<ClaimState>) -> LockState {
    let key = LockKey::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
    LockState::new(key, line, None)
}

/// Three locks: `young` is held for 3 s, `old` for 200 s with two waiters, `middle` for 60 s.
fn polled() -> Model {
    let mut model = Model::new("redis://db:6379".to_owned(), "shop", "");
    let mut noted = claim(31, "db-3", Some(60), 60);
    noted.note = Some("the Nightly".to_owned());
    let states = vec![
        lock("young", vec![claim(11, "db-1", Some(3), 3)]),
        lock(
            "old",
            vec![
                claim(21, "db-2", Some(200), 201),
                claim(22, "db-3", None, 90),
                claim(23, "db-4", None, 10),
            ],
        ),
        lock("middle", vec![noted]),
    ];
    model.update(states, SECOND);
    model
}

fn names(model: &Model) -> Vec<String> {
    model.rows().iter().map(|row| row.state.name().as_str().to_owned()).collect()
}

fn type_in(model: &mut Model, text: &str) {
    for c in text.chars() {
        assert_eq!(model.press(Key::Char(c)), None);
    }
}

/// The picture as lines of text.
fn picture(model: &Model, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, Palette { colored: true })).unwrap();
    let cells = terminal.backend().buffer().content.chunks(usize::from(width));
    let lines = cells.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>());
    lines.map(|line| line.trim_end().to_owned()).collect()
}

fn line_with<'a>(picture: &'a [String], text: &str) -> &'a str {
    let found = picture.iter().find(|line| line.contains(text));
    found.unwrap_or_else(|| panic!("no {text:?} in {picture:#?}"))
}

#[test]
fn locks_are_sorted_by_age_and_by_what_s_asks_for() {
    let mut model = polled();
    assert_eq!(names(&model), ["old", "middle", "young"]);
    let mut orders = Vec::new();
    for _ in 0..5 {
        model.press(Key::Char('s'));
        orders.push(model.order);
    }
    use SortKey::{Age, Changes, LongestWait, Name, Waiters};
    assert_eq!(orders, [LongestWait, Waiters, Changes, Name, Age]);
    model.order = Name;
    assert_eq!(names(&model), ["middle", "old", "young"]);
    model.order = LongestWait;
    assert_eq!(names(&model)[0], "old");
}

#[test]
fn the_sums_are_those_of_what_is_shown() {
    let mut model = polled();
    let sums = model.sums(&model.rows());
    assert_eq!((sums.locks, sums.holders, sums.waiters), (3, 3, 2));
    assert_eq!(sums.longest_wait, Some(90 * SECOND));
    model.text = "db-1".to_owned();
    let sums = model.sums(&model.rows());
    assert_eq!((sums.locks, sums.holders, sums.waiters, sums.longest_wait), (1, 1, 0, None));
}

#[test]
fn a_text_is_looked_for_in_names_holders_and_notes() {
    for (text, found) in
        [("OUN", vec!["young"]), ("db-4", vec!["old"]), ("nightly", vec!["middle"])]
    {
        let mut model = polled();
        type_in(&mut model, "/");
        type_in(&mut model, text);
        assert_eq!(names(&model), found, "while it is typed");
        model.press(Key::Enter);
        assert_eq!(names(&model), found);
        assert_eq!(model.prompt, None);
        model.press(Key::Escape);
        assert_eq!(names(&model).len(), 3);
    }
}

#[test]
fn a_prefix_is_asked_of_the_backend() {
    let mut model = polled();
    type_in(&mut model, "pjobx");
    assert_eq!(model.press(Key::Erase), None);
    assert_eq!(model.press(Key::Enter), Some(Effect::Ask("job".to_owned())));
    assert!(!model.has_looked(), "what was seen before is of other names");
    type_in(&mut model, "pnot");
    assert_eq!(model.press(Key::Escape), None);
    assert_eq!(model.beginning, "job");
}

#[test]
fn a_rate_counts_claims_that_began_to_hold() {
    let mut model = polled();
    let of = |model: &Model, name: &str| {
        model.rows().iter().find(|row| row.state.name().as_str() == name).unwrap().rate
    };
    assert_eq!(of(&model, "old"), 0.0, "the first look shows nothing new");
    // Within 60 s: `a` has had three more holders, one of them beside the first.
    let a = |tokens: &[u64]| {
        vec![lock("a", tokens.iter().map(|t| claim(*t, "h", Some(1), 1)).collect())]
    };
    model.update(a(&[1]), 21 * SECOND);
    model.update(a(&[1, 2]), 41 * SECOND);
    model.update(a(&[3]), 61 * SECOND);
    assert_eq!(of(&model, "a"), 3.0);
    // A free lock counts in the sum until a minute has passed.
    model.update(Vec::new(), 62 * SECOND);
    assert_eq!(model.sums(&[]).rate, 3.0);
    model.update(Vec::new(), 200 * SECOND);
    assert_eq!(model.sums(&[]).rate, 0.0);
}

#[test]
fn the_chosen_lock_stays_chosen_when_rows_move() {
    let mut model = polled();
    model.press(Key::Down);
    let chosen = |model: &Model| names(model)[model.chosen_row(&model.rows()).unwrap()].clone();
    assert_eq!(chosen(&model), "middle");
    model.order = SortKey::Name;
    assert_eq!(chosen(&model), "middle");
    for (key, name) in [(Key::Last, "young"), (Key::First, "middle"), (Key::PageDown, "young")] {
        model.press(key);
        assert_eq!(chosen(&model), name);
    }
    model.update(vec![lock("old", vec![claim(21, "db-2", Some(201), 201)])], 2 * SECOND);
    assert_eq!(chosen(&model), "old");
    model.update(Vec::new(), 3 * SECOND);
    assert_eq!(model.chosen_row(&model.rows()), None);
    assert_eq!(model.press(Key::Down), None);
}

#[test]
fn a_break_asks_first_and_names_the_token() {
    let mut model = polled();
    model.press(Key::Char('b'));
    let asked = picture(&model, 80, 20);
    line_with(&asked, "Break the lock \"old\"?");
    line_with(&asked, "token 21");
    line_with(&asked, "held by ada:backup[7]@db-2 for 3 min 20 s");
    assert_eq!(model.press(Key::Enter), None, "only y and f break");
    assert_eq!(model.prompt, None);
    model.press(Key::Char('b'));
    let Some(Effect::Break(graceful)) = model.press(Key::Char('y')) else {
        panic!("it is not broken");
    };
    assert_eq!((graceful.token.get(), graceful.force), (21, BreakMode::Graceful));
    model.press(Key::Char('b'));
    let Some(Effect::Break(forced)) = model.press(Key::Char('f')) else {
        panic!("it is not broken");
    };
    assert_eq!((&*forced.name, forced.force), ("old", BreakMode::Forced));
}

#[test]
fn the_confirmed_token_is_broken_although_the_lock_moved_on() {
    let mut model = polled();
    model.press(Key::Char('b'));
    model.update(vec![lock("old", vec![claim(22, "db-3", Some(1), 91)])], 2 * SECOND);
    let Some(Effect::Break(target)) = model.press(Key::Char('y')) else {
        panic!("it is not broken");
    };
    assert_eq!(target.token.get(), 21, "the backend refuses it: nobody else loses the lock");
}

#[test]
fn a_line_is_shown_in_order_and_any_place_of_it_can_be_broken() {
    let mut model = polled();
    model.press(Key::Enter);
    assert!(matches!(&model.view, View::Line { id, .. } if id.1 == "old"));
    let shown = picture(&model, 80, 20);
    line_with(&shown, "the lock \"old\": held by 1, waiting: 2");
    for (text, place, role) in
        [("db-2", "1", "holds"), ("db-3", "2", "waits"), ("db-4", "3", "waits")]
    {
        let words: Vec<&str> =
            line_with(&shown, text).trim_start_matches('>').split_whitespace().collect();
        assert_eq!(words[..2], [place, role]);
    }
    model.press(Key::Down);
    model.press(Key::Char('b'));
    assert!(matches!(&model.prompt, Some(Prompt::Break(target)) if target.token.get() == 22));
    model.press(Key::Escape);
    model.update(Vec::new(), 2 * SECOND);
    line_with(&picture(&model, 80, 20), "the lock \"old\" is free");
    model.press(Key::Char('b'));
    assert_eq!(model.prompt, None, "there is nothing to break");
    model.press(Key::Escape);
    assert_eq!(model.view, View::List);
}

#[test]
fn the_list_fits_into_80_columns_and_uses_200() {
    let model = polled();
    let narrow = picture(&model, 80, 20);
    assert!(
        narrow[0].starts_with("lockkit top  redis://db:6379  namespace \"shop\""),
        "{narrow:#?}"
    );
    line_with(&narrow, "locks 3  holders 3  waiters 2  longest wait 1m30s");
    let old = line_with(&narrow, "old ");
    for cell in ["exclusive", "3m20s", "2", "1m30s", "0.0", "ada:backup[7]@db-2"] {
        assert!(old.contains(cell), "{cell} in {old}");
    }
    let wide = picture(&model, 200, 20);
    let title = line_with(&wide, "NAME");
    assert!(
        title.contains("TOKEN") && title.contains("NOTE") && title.contains("SPACE"),
        "{title}"
    );
    assert!(line_with(&wide, "middle").contains("the Nightly"), "{wide:#?}");
}

#[test]
fn a_semaphore_shows_its_permits_in_use() {
    let mut model = polled();
    let permits = |token, held| {
        let mut claim = claim(token, "h", held, 5);
        claim.mode = Mode::Permits { permits: 1, limit: 3 };
        claim
    };
    let queue = vec![permits(1, Some(2)), permits(2, Some(1)), permits(3, None)];
    model.update(vec![lock("a", queue)], SECOND);
    line_with(&picture(&model, 80, 10), "2 of 3");
}

#[test]
fn names_are_whole_at_any_width_that_has_room_for_them() {
    let mut model = polled();
    let name = "nightly/backup/of/everything";
    model.update(vec![lock(name, vec![claim(1, "db-1", Some(2), 2)])], SECOND);
    for width in [40, 60, 80, 130, 200] {
        let line = line_with(&picture(&model, width, 10), name).to_owned();
        assert!(line.contains("2s"), "how long it is held, at {width}: {line}");
    }
    let long = "x".repeat(300);
    model.update(vec![lock(&long, vec![claim(1, "db-1", Some(2), 2)])], SECOND);
    let shown = picture(&model, 80, 10);
    assert!(line_with(&shown, "xxx").contains("db-1"), "the holder has room beside it: {shown:#?}");
}

#[test]
fn a_question_mark_explains_the_keys() {
    let mut model = polled();
    for view in [Key::Escape, Key::Enter] {
        model.press(view);
        model.press(Key::Char('?'));
        let shown = picture(&model, 80, 24);
        for key in ["Enter", "Home, g", "break the chosen claim", "quit"] {
            line_with(&shown, key);
        }
        assert_eq!(model.press(Key::Char('q')), None, "any key closes it, and does no more");
        assert_eq!(model.prompt, None);
    }
}

#[test]
fn several_holders_are_counted_before_the_first_is_named() {
    let mut model = polled();
    model.update(
        vec![lock("a", vec![claim(1, "h", Some(2), 2), claim(2, "h", Some(1), 1)])],
        SECOND,
    );
    line_with(&picture(&model, 80, 10), "2x ada:backup[7]@h");
}

#[test]
fn a_failed_look_is_told_and_what_was_seen_stays() {
    let mut model = polled();
    model.fail("redis: no answer".to_owned());
    let shown = picture(&model, 80, 20);
    line_with(&shown, "not up to date: redis: no answer");
    line_with(&shown, "young");
    model.update(Vec::new(), 2 * SECOND);
    let shown = picture(&model, 80, 20);
    line_with(&shown, "nothing of that kind is in use");
    assert!(!shown.iter().any(|line| line.contains("not up to date")));
}

#[test]
fn a_terminal_of_any_size_is_drawn() {
    let mut model = polled();
    for keys in [&[][..], &[Key::Char('b')], &[Key::Escape, Key::Enter]] {
        for key in keys {
            model.press(*key);
        }
        for (width, height) in [(1, 1), (5, 2), (20, 3), (40, 5), (300, 100)] {
            assert_eq!(picture(&model, width, height).len(), usize::from(height));
        }
    }
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let mut model = polled();
    let mut claim = claim(1, "evil\u{1b}[2J", Some(1), 1);
    claim.note = Some("\u{7}".to_owned());
    model.update(vec![lock("a", vec![claim])], 2 * SECOND);
    let shown = picture(&model, 200, 10).concat();
    assert!(shown.contains("evil") && !shown.contains(char::is_control), "{shown:?}");
}

#[test]
fn durations_are_short() {
    for (seconds, said) in
        [(12, "12s"), (303, "5m03s"), (7_800, "2h10m"), (273_600, "3d04h"), (103_680_000, "1200d")]
    {
        assert_eq!(short(Duration::from_secs(seconds)), said);
        assert!(said.len() <= 6);
    }
    assert_eq!(short(Duration::from_millis(350)), "350ms");
}
