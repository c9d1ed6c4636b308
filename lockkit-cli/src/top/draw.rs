//! The picture of a state: a function of the model and of the size of the terminal, and of nothing
//! else.

use std::time::Duration;

use lockkit::state::{ClaimState, LockState};
use lockkit::{Mode, Space};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as Cells, Table, TableState, Wrap};

use super::model::{Model, Prompt, Row, Target, View};
use crate::describe;
use crate::output::printable;

/// From this width on, there is room for everything.
const WIDE: u16 = 120;

/// How the parts look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Palette {
    pub(super) colored: bool,
}

pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, palette: Palette) {
    let [title, sums, choice, body, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let rows = model.rows();
    frame.render_widget(Paragraph::new(heading(model)).style(palette.bold()), title);
    frame.render_widget(Paragraph::new(summary(model, &rows)), sums);
    frame.render_widget(Paragraph::new(selection(model)).style(palette.faint()), choice);
    match &model.view {
        View::List => list(frame, body, model, &rows, palette),
        View::Line { id, at } => draw_queue(frame, body, model, (id.0, &id.1), *at, palette),
    }
    let (text, style) = foot(model, palette);
    frame.render_widget(Paragraph::new(text).style(style), footer);
    match &model.prompt {
        Some(Prompt::Break(target)) => confirmation(frame, target, palette),
        Some(Prompt::Keys) => keys(frame, palette),
        _ => {}
    }
}

fn heading(model: &Model) -> String {
    let mut text = format!("lockkit top  {}", model.backend);
    if !model.namespace.is_empty() {
        text.push_str(&format!("  namespace {:?}", model.namespace));
    }
    printable(&text)
}

fn summary(model: &Model, rows: &[Row<'_>]) -> String {
    if !model.has_looked() {
        return "asking the backend".to_owned();
    }
    let sums = model.sums(rows);
    format!(
        "locks {}  holders {}  waiters {}  longest wait {}  changes {:.1}/min",
        sums.locks,
        sums.holders,
        sums.waiters,
        sums.longest_wait.map_or_else(|| "-".to_owned(), short),
        sums.rate,
    )
}

/// Which locks are shown, and in which order.
fn selection(model: &Model) -> String {
    let mut text = format!("by {}", model.order.as_str());
    if !model.beginning.is_empty() {
        text.push_str(&format!("  names {}*", model.beginning));
    }
    if !model.text.is_empty() {
        text.push_str(&format!("  with {:?}", model.text));
    }
    printable(&text)
}

/// A column of the list, behind the name.
struct Column {
    title: &'static str,
    /// The least that it is shown with.
    width: u16,
    /// Its part of what is left; 0 for one that needs no more than its width.
    share: u16,
    /// Those with a lower number are shown first where there is no room for all.
    rank: u8,
    text: fn(&Row<'_>) -> String,
}

const COLUMNS: [Column; 9] = [
    Column {
        title: "SPACE",
        width: 9,
        share: 0,
        rank: 8,
        text: |row| row.state.space().to_string(),
    },
    Column { title: "MODE", width: 9, share: 0, rank: 4, text: |row| use_of(row.state) },
    Column { title: "HELD", width: 6, share: 0, rank: 1, text: |row| short_or_dash(row.held_for) },
    Column { title: "WAITERS", width: 7, share: 0, rank: 2, text: |row| row.waiters.to_string() },
    Column {
        title: "LONGEST",
        width: 7,
        share: 0,
        rank: 5,
        text: |row| short_or_dash(row.longest_wait),
    },
    Column {
        title: "CHG/MIN",
        width: 7,
        share: 0,
        rank: 6,
        text: |row| format!("{:.1}", row.rate),
    },
    Column { title: "TOKEN", width: 20, share: 0, rank: 9, text: first_token },
    Column { title: "HELD BY", width: 16, share: 4, rank: 3, text: holders },
    Column { title: "NOTE", width: 16, share: 6, rank: 7, text: first_note },
];

fn list(frame: &mut Frame<'_>, area: Rect, model: &Model, rows: &[Row<'_>], palette: Palette) {
    let longest = rows.iter().map(|row| Line::from(row.state.name().as_str()).width()).max();
    // Names go first. On a narrow terminal, only how long they are held has room beside them.
    let most = if area.width < 60 { area.width.saturating_sub(10) } else { area.width / 2 };
    let name = (longest.unwrap_or(0).min(usize::from(most)) as u16).max(4);
    let shown = columns_within(area.width.saturating_sub(name + 2));
    let mut columns = vec![("NAME", Constraint::Length(name))];
    columns.extend(shown.iter().map(|column| match column.share {
        0 => (column.title, Constraint::Length(column.width)),
        share => (column.title, Constraint::Fill(share)),
    }));
    let cells = rows.iter().map(|row| {
        let name = row.state.name().as_str().to_owned();
        let others = shown.iter().map(|column| (column.text)(row));
        let waited_for = row.waiters > 0;
        let style = if waited_for { palette.warning() } else { Style::new() };
        cells_of([name].into_iter().chain(others).collect()).style(style)
    });
    let chosen = model.chosen_row(rows);
    table(frame, area, &columns, cells, chosen, palette);
    if rows.is_empty() && model.has_looked() {
        say(frame, area, "nothing of that kind is in use", palette);
    }
}

/// The columns for which there is room, in the order in which they are shown.
fn columns_within(mut room: u16) -> Vec<&'static Column> {
    let mut ranked: Vec<_> = COLUMNS.iter().enumerate().collect();
    ranked.sort_by_key(|(_, column)| column.rank);
    let mut shown = Vec::new();
    for (at, column) in ranked {
        let Some(left) = room.checked_sub(column.width + 1) else { break };
        room = left;
        shown.push((at, column));
    }
    shown.sort_by_key(|(at, _)| *at);
    shown.into_iter().map(|(_, column)| column).collect()
}

fn first_token(row: &Row<'_>) -> String {
    row.state.queue.first().map_or_else(String::new, |claim| claim.token.to_string())
}

fn first_note(row: &Row<'_>) -> String {
    row.state.queue.first().and_then(|claim| claim.note.clone()).unwrap_or_default()
}

/// The first holder. The count of several stands first, since a long name may be cut off.
fn holders(row: &Row<'_>) -> String {
    let first = row.state.holders().next();
    let first = first.map_or_else(String::new, |claim| claim.identity.to_string());
    match row.state.holders().count() {
        0 | 1 => first,
        many => format!("{many}x {first}"),
    }
}

/// How a lock is used: of a semaphore, its permits in use and its limit.
fn use_of(state: &LockState) -> String {
    let permits = |mode| match mode {
        Mode::Permits { permits, .. } => permits,
        _ => 0,
    };
    match state.queue.first().map(|claim| claim.mode) {
        Some(Mode::Permits { limit, .. }) => {
            let used: u64 = state.holders().map(|claim| u64::from(permits(claim.mode))).sum();
            format!("{used} of {limit}")
        }
        other => other.map_or_else(String::new, mode),
    }
}

fn short_or_dash(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), short)
}

fn draw_queue(
    frame: &mut Frame<'_>,
    area: Rect,
    model: &Model,
    (space, name): (Space, &str),
    at: usize,
    palette: Palette,
) {
    let [title, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    let subject = printable(&describe::subject(space, name));
    let Some(state) = model.selected_state() else {
        let text = if model.has_looked() { format!("{subject} is free") } else { subject };
        frame.render_widget(Paragraph::new(text).style(palette.bold()), title);
        return;
    };
    let (holders, waiters) = (state.holders().count(), state.waiters().count());
    let mut text = format!("{subject}: held by {holders}, waiting: {waiters}");
    if let Some(record) = &state.last_break {
        text.push_str(&printable(&format!("; last broken {record}")));
    }
    frame.render_widget(Paragraph::new(text).style(palette.bold()), title);
    let mut columns = vec![
        ("", Constraint::Length(4)),
        ("", Constraint::Length(5)),
        ("TOKEN", Constraint::Length(20)),
        ("FOR", Constraint::Length(6)),
        ("EXPIRES", Constraint::Length(7)),
        ("WHO", Constraint::Fill(4)),
    ];
    if area.width >= WIDE {
        columns.insert(3, ("MODE", Constraint::Length(9)));
        columns.push(("NOTE", Constraint::Fill(6)));
    }
    let cells = state.queue.iter().enumerate().map(|(place, claim)| {
        let mut cells = vec![
            (place + 1).to_string(),
            role(claim).to_owned(),
            claim.token.to_string(),
            short(claim.held_for.unwrap_or(claim.queued_for)),
            short(claim.expires_in),
            claim.identity.to_string(),
        ];
        if area.width >= WIDE {
            cells.insert(3, mode(claim.mode));
            cells.push(claim.note.clone().unwrap_or_default());
        }
        cells_of(cells).style(match (claim.broken, claim.holds()) {
            (true, _) => palette.bad(),
            (_, true) => palette.good(),
            _ => Style::new(),
        })
    });
    table(frame, body, &columns, cells, Some(at), palette);
}

fn role(claim: &ClaimState) -> &'static str {
    match (claim.broken, claim.holds()) {
        (true, _) => "broke",
        (_, true) => "holds",
        _ => "waits",
    }
}

fn cells_of<'a>(cells: Vec<String>) -> Cells<'a> {
    Cells::new(cells.into_iter().map(|cell| Cell::from(printable(&cell))))
}

fn table<'a>(
    frame: &mut Frame<'_>,
    area: Rect,
    columns: &[(&'a str, Constraint)],
    cells: impl Iterator<Item = Cells<'a>>,
    chosen: Option<usize>,
    palette: Palette,
) {
    let header = Cells::new(columns.iter().map(|(title, _)| Cell::from(*title)));
    let table = Table::new(cells, columns.iter().map(|(_, width)| *width))
        .header(header.style(palette.faint()))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .highlight_symbol("> ");
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(chosen));
}

/// What can be done, or what became of what was.
fn foot(model: &Model, palette: Palette) -> (String, Style) {
    let (text, style) = match (&model.prompt, &model.message, &model.error) {
        (Some(Prompt::Beginning(text)), ..) => {
            (format!("names that begin with: {text}_  (Enter: show, Esc: back)"), Style::new())
        }
        (Some(Prompt::Text(text)), ..) => {
            (format!("name, holder or note with: {text}_  (Enter: keep, Esc: all)"), Style::new())
        }
        (_, Some(Ok(done)), _) => (done.clone(), palette.good()),
        (_, Some(Err(failed)), _) => (failed.clone(), palette.bad()),
        (_, _, Some(error)) => (format!("not up to date: {error}"), palette.bad()),
        _ => {
            let keys = match model.view {
                View::List => "Enter queue  b break  / filter  p prefix  s order  ? keys  q quit",
                View::Line { .. } => "Esc list  b break  ? keys  q quit",
            };
            (keys.to_owned(), palette.faint())
        }
    };
    (printable(&text), style)
}

/// What each key does.
fn keys(frame: &mut Frame<'_>, palette: Palette) {
    let lines = [
        "Up, k   Down, j      choose",
        "Page Up, Page Down   ten further",
        "Home, g   End, G     the first, the last",
        "Enter                the queue of the chosen lock; back",
        "Esc                  back; all locks again",
        "/                    only names, holders and notes with a text",
        "p                    only names that begin with a text",
        "s                    another order",
        "b                    break the chosen claim; asks first",
        "q, Ctrl-C            quit",
        "any key: back",
    ];
    window(frame, " keys ", &lines.map(str::to_owned), palette.faint());
}

/// Asks before anything is broken, and names the token.
fn confirmation(frame: &mut Frame<'_>, target: &Target, palette: Palette) {
    let Target { space, name, token, whose, .. } = target;
    let lines = [
        format!("Break {}?", describe::subject(*space, name)),
        format!("token {token}"),
        whose.clone(),
        String::new(),
        "y  graceful: it moves on when the holder lets go or its lease ends".to_owned(),
        "f  forced: it moves on at once; only tokens protect what it guards".to_owned(),
        "any other key: leave it".to_owned(),
    ];
    window(frame, " break ", &lines, palette.bad());
}

/// Lines in a border, over what is shown.
fn window(frame: &mut Frame<'_>, title: &str, lines: &[String], border: Style) {
    let area = frame.area();
    let width = area.width.min(72);
    let height = area.height.min(lines.len() as u16 + 2);
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    let text: Vec<Line<'_>> = lines.iter().map(|line| Line::from(printable(line))).collect();
    let block = Block::bordered().title(title.to_owned()).border_style(border);
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(text).block(block).wrap(Wrap { trim: true }), place);
}

fn say(frame: &mut Frame<'_>, area: Rect, text: &str, palette: Palette) {
    let place = Rect { y: area.y + 1, height: area.height.saturating_sub(1).min(1), ..area };
    frame.render_widget(Paragraph::new(text.to_owned()).style(palette.faint()), place);
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Permits { permits, limit } => format!("{permits} of {limit}"),
        mode => mode.as_str().to_owned(),
    }
}

/// A duration in six characters at most: `350ms`, `12s`, `5m03s`, `2h10m`, `3d04h`, `1200d`.
pub(super) fn short(d: Duration) -> String {
    let seconds = d.as_secs();
    match seconds {
        0 => format!("{}ms", d.subsec_millis()),
        1..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        86_400..8_640_000 => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

impl Palette {
    fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    fn good(self) -> Style {
        self.in_color(Color::Green)
    }

    fn warning(self) -> Style {
        self.in_color(Color::Yellow)
    }

    fn bad(self) -> Style {
        self.in_color(Color::Red)
    }

    fn in_color(self, color: Color) -> Style {
        if self.colored { Style::new().fg(color) } else { Style::new() }
    }
}
