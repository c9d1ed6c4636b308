//! `top` on a terminal, used as a person would.

use crate::pty::{CTRL_C, Terminal};
use crate::stage::{Running, Stage, code, stderr};

/// `job/old` is held and waited for, `job/young` and `other` are held.
fn busy(stage: &Stage) -> Running {
    for name in ["job/old", "job/young", "other"] {
        let note = format!("note of {name}");
        let taken = ["acquire", "--local", "--ttl", "1000", "--note", &note, name];
        assert_eq!(code(&stage.run(&taken)), 0);
        stage.wait_for_holder(name);
    }
    let waiter = stage.start(&["run", "--local", "--note", "me too", "job/old", "true"]);
    stage.wait_for_waiters("job/old", 1);
    waiter
}

fn top(stage: &Stage, columns: u16) -> Terminal {
    let program = [env!("CARGO_BIN_EXE_lockkit"), "top", "--local", "--interval", "100ms"];
    Terminal::of_size(stage, &program, columns, 20)
}

fn has(text: &str) -> impl Fn(&str) -> bool + '_ {
    move |screen| screen.contains(text)
}

/// The line of the screen with this text.
fn line<'a>(screen: &'a str, text: &str) -> &'a str {
    screen.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{text} in {screen}"))
}

#[test]
fn all_of_it_works_on_80_and_on_200_columns() {
    for columns in [80, 200] {
        let stage = Stage::new();
        let mut waiter = busy(&stage);
        let old = stage.wait_for_holder("job/old").to_string();
        let mut top = top(&stage, columns);
        let screen = top.show("the list", has("locks 3  holders 3  waiters 1"));
        assert!(screen.starts_with("lockkit top  sqlite:"), "{screen}");
        let row = line(&screen, "job/old");
        assert!(row.contains("exclusive") && row.contains('@'), "{row}");
        assert_eq!(screen.contains("note of other"), columns == 200, "{screen}");

        top.type_in("/young");
        let screen = top.show("the filter", has("locks 1  holders 1"));
        assert!(screen.contains("job/young") && !screen.contains("job/old"), "{screen}");
        top.type_in("\r\x1b");
        top.show("everything", has("locks 3"));
        top.type_in("pjob/\r");
        let screen = top.show("the prefix", has("locks 2  holders 2  waiters 1"));
        assert!(screen.contains("names job/*") && !screen.contains("other"), "{screen}");

        top.type_in("s");
        top.show("the order", has("by longest wait"));
        top.type_in("g\r");
        let screen = top.show("the line", has("the lock \"job/old\": held by 1, waiting: 1"));
        for (role, place) in [("holds", "1"), ("waits", "2")] {
            let place_of = line(&screen, role).trim_start_matches('>').split_whitespace().next();
            assert_eq!(place_of, Some(place), "{screen}");
        }
        assert!(line(&screen, "holds").contains(&old), "{screen}");

        top.type_in("b");
        let screen = top.show("the question", has("Break the lock \"job/old\"?"));
        assert!(screen.contains(&format!("token {old}")), "{screen}");
        top.type_in("n");
        top.show("the answer", has("nothing was broken"));
        assert_eq!(stage.wait_for_holder("job/old").to_string(), old);
        top.type_in("b");
        top.show("the question", has("Break the lock \"job/old\"?"));
        top.type_in("f");
        top.show("the break", has("broke the lock \"job/old\", token"));
        assert_eq!(waiter.code(), 0, "the next one holds");
        top.show("a free lock", has("the lock \"job/old\" is free"));

        top.type_in("q");
        assert_eq!(top.session.code(), 0);
    }
}

#[test]
fn the_terminal_is_as_before_when_it_ends() {
    let stage = Stage::new();
    for end in ["q", CTRL_C] {
        let mut terminal = Terminal::open(&stage, &["sh", "-i"]);
        terminal.show("a prompt", has("prompt> "));
        terminal.type_in("\"$LOCKKIT\" top --local; echo code=$?\n");
        terminal.show("the list", has("nothing of that kind is in use"));
        terminal.type_in(end);
        let screen = terminal.show("the end", has("code=0"));
        assert!(screen.starts_with("prompt> ") && !screen.contains("in use"), "{screen}");
        // Echoed, so the terminal reads lines again.
        terminal.type_in("printf 'a%sz\\n' b\n");
        terminal.show("an echo", has("printf 'a%sz"));
        terminal.show("an answer", has("abz"));
    }
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let stage = Stage::new();
    let ran = stage.run(&["top", "--local"]);
    assert_eq!(code(&ran), 64);
    assert!(stderr(&ran).contains("needs a terminal"), "{}", stderr(&ran));
    assert!(!stage.state_folder().exists(), "nothing was touched");
}
