//! How to use a database server: the part of the URL that sqlx does not read.

use std::time::Duration;

use lockkit_core::driver::{join_query, split_query};
use lockkit_core::{Error, Result};

/// What waits for the server's disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerDurability {
    /// Every operation, as far as the server's own settings wait.
    #[default]
    Full,
    /// Registers, breaks and changed claims. A crash of the server or its machine may
    /// forget the last moments' claims, so that another holds beside one who does not know yet;
    /// tokens grow all the same.
    Needed,
}

/// Locks of other libraries, which exclusive locks exclude and are excluded by: `docs/neighbours.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SqlNeighbours {
    /// PostgreSQL 14 and later: the advisory lock that `pg_advisory_lock(hashtext(name))` takes, or for a name
    /// of digits, the one of that number. One more connection a process, to the server itself.
    Advisory,
    /// PostgreSQL, MySQL and MariaDB: the row that [ShedLock](https://github.com/lukas-krecan/ShedLock) has of a
    /// lock, where all its lock providers have `usingDbTime()`. See [`ServerOptions::shedlock_table`].
    ShedLock,
}

/// Where ShedLock's rows are: its table, and the columns with name, end, beginning and owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShedLockTable {
    pub(crate) table: String,
    pub(crate) columns: [String; 4],
}

impl Default for ShedLockTable {
    fn default() -> Self {
        let columns = ["name", "lock_until", "locked_at", "locked_by"];
        Self { table: "shedlock".to_owned(), columns: columns.map(str::to_owned) }
    }
}

impl ShedLockTable {
    /// A statement with its names in place of `{shedlock}` and the columns' default names in braces.
    pub(crate) fn fill(&self, text: &str) -> String {
        let columns = Self::default().columns.map(|column| format!("{{{column}}}"));
        let text = text.replace("{shedlock}", &self.table);
        columns.iter().zip(&self.columns).fold(text, |text, (is, to)| text.replace(is, to))
    }

    /// Names stand in statements without quotes, as in those of ShedLock.
    fn check(&self) -> Result<()> {
        let is_name = |name: &str| {
            let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            !name.starts_with(|c: char| c.is_ascii_digit())
                && (1..=64).contains(&name.len())
                && name.bytes().all(is_word)
        };
        match self.table.splitn(2, '.').chain(self.columns.iter().map(String::as_str)).all(is_name)
        {
            true => Ok(()),
            false => Err(Error::config(
                "shedlock_table is a table, or `schema.table`, and shedlock_columns are the four columns with \
                 name, end, beginning and owner, made of letters, digits and _",
            )),
        }
    }
}

/// Where the tables are: a schema of PostgreSQL, or what the names of the tables begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables(pub String);

/// How to use a database server. Also the query of a URL.
///
/// ```
/// use std::time::Duration;
/// use lockkit_sql::ServerOptions;
///
/// let options = ServerOptions::default()
///     .timeout(Duration::from_secs(2))
///     .connections(4)
///     .tables("shop_locks");
/// ```
#[derive(Clone, Debug)]
pub struct ServerOptions {
    pub(crate) timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) durability: ServerDurability,
    pub(crate) tables: Option<Tables>,
    pub(crate) neighbours: Option<SqlNeighbours>,
    pub(crate) shedlock: ShedLockTable,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let timeout = Duration::from_secs(5);
        Self {
            timeout,
            connections: 8,
            durability: ServerDurability::Full,
            tables: None,
            neighbours: None,
            shedlock: ShedLockTable::default(),
        }
    }
}

impl ServerOptions {
    /// How long one operation may take, connecting and waiting for a connection included, before it
    /// counts as failed; 5 s unless set. (`?timeout=5s`)
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many connections it opens at most, beside the one that listens; 8 unless set. They are
    /// opened when they are needed. (`?connections=8`)
    #[must_use]
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most.max(1);
        self
    }

    /// What waits for the disk. (`?durability=full` or `needed`)
    #[must_use]
    pub fn durability(mut self, durability: ServerDurability) -> Self {
        self.durability = durability;
        self
    }

    /// Where the tables are: the schema on PostgreSQL, `lockkit` unless set; what the names of the
    /// tables begin with on MySQL and MariaDB, `lockkit_` unless set. (`?tables=shop_locks`)
    #[must_use]
    pub fn tables(mut self, name: impl Into<String>) -> Self {
        self.tables = Some(Tables(name.into()));
        self
    }

    /// The locks of other libraries that exclusive locks exclude and are excluded by, for all processes of a
    /// namespace; none unless set. (`?neighbours=advisory` or `shedlock`)
    #[must_use]
    pub fn neighbours(mut self, neighbours: SqlNeighbours) -> Self {
        self.neighbours = Some(neighbours);
        self
    }

    /// ShedLock's table, `shedlock` unless set; `schema.table` for one elsewhere. lockkit never makes it.
    /// (`?shedlock_table=jobs.shedlock`)
    #[must_use]
    pub fn shedlock_table(mut self, table: impl Into<String>) -> Self {
        self.shedlock.table = table.into();
        self
    }

    /// Its columns with name, end, beginning and owner of a lock, in this order.
    /// (`?shedlock_columns=name,lock_until,locked_at,locked_by`)
    #[must_use]
    pub fn shedlock_columns(mut self, columns: [&str; 4]) -> Self {
        self.shedlock.columns = columns.map(str::to_owned);
        self
    }

    /// The neighbours as a namespace remembers them: what stands behind `neighbours=` in a URL.
    pub(crate) fn setting(&self) -> Result<Option<String>> {
        let (ours, default) = (&self.shedlock, ShedLockTable::default());
        let Some(SqlNeighbours::ShedLock) = self.neighbours else {
            return match *ours == default {
                true => Ok(self.neighbours.map(|_| "advisory".to_owned())),
                false => Err(Error::config("ShedLock's table is for `neighbours=shedlock`")),
            };
        };
        ours.check()?;
        let mut setting = "shedlock".to_owned();
        if ours.table != default.table {
            setting.push_str(&format!("&shedlock_table={}", ours.table));
        }
        if ours.columns != default.columns {
            setting.push_str(&format!("&shedlock_columns={}", ours.columns.join(",")));
        }
        Ok(Some(setting))
    }

    /// Takes these options out of a URL's query, and leaves the rest for sqlx.
    pub(crate) fn parse(mut self, url: &str) -> Result<(Self, String)> {
        let (place, options) = split_query(url);
        let mut others = Vec::new();
        for option in options {
            match option.name {
                "timeout" => self.timeout = option.duration()?,
                "connections" => self.connections = option.number(1..=1_000)?,
                "durability" => {
                    let (full, needed) = (ServerDurability::Full, ServerDurability::Needed);
                    self.durability = option.choice(&[("full", full), ("needed", needed)])?;
                }
                "tables" => self = self.tables(option.value),
                "neighbours" => {
                    let (advisory, shedlock) = (SqlNeighbours::Advisory, SqlNeighbours::ShedLock);
                    let known = [("advisory", advisory), ("shedlock", shedlock)];
                    self.neighbours = Some(option.choice(&known)?);
                }
                "shedlock_table" => self = self.shedlock_table(option.value),
                "shedlock_columns" => {
                    let columns: Vec<_> = option.value.split(',').collect();
                    let four = <[&str; 4]>::try_from(columns);
                    let wrong = |_| Error::config("shedlock_columns are four, with commas between");
                    self = self.shedlock_columns(four.map_err(wrong)?);
                }
                _ => others.push(option),
            }
        }
        let rest = join_query(place, &others);
        Ok((self, rest))
    }
}

/// Whether this can stand in a statement as it is: lower-case letters, digits and `_`, at most
/// 40 of them, and no digit in front.
pub(crate) fn is_plain(name: &str) -> bool {
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    begins
        && name.len() <= 40
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_options_are_taken_out_of_the_url() {
        let url = "postgres://u@h/db?timeout=3s&sslmode=require&tables=shop&durability=needed";
        let (options, rest) = ServerOptions::default().parse(url).unwrap();
        assert_eq!(rest, "postgres://u@h/db?sslmode=require");
        assert_eq!(options.timeout, Duration::from_secs(3));
        assert_eq!(options.tables, Some(Tables("shop".into())));
        assert_eq!(options.durability, ServerDurability::Needed);
        for bad in
            ["connections=0", "connections=x", "timeout=soon", "durability=some", "neighbours=x"]
        {
            let url = format!("mysql://h/db?{bad}");
            assert!(ServerOptions::default().parse(&url).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_namespace_remembers_its_neighbours_as_a_url_has_them() {
        let setting = |query: &str| {
            let url = format!("postgres://h/db?{query}");
            ServerOptions::default().parse(&url).and_then(|(options, _)| options.setting())
        };
        assert_eq!(setting("timeout=3s").unwrap(), None);
        for query in [
            "advisory",
            "shedlock",
            "shedlock&shedlock_table=jobs.Locks_2",
            "shedlock&shedlock_table=l&shedlock_columns=NAME,until,since,owner",
        ] {
            assert_eq!(setting(&format!("neighbours={query}")).unwrap().unwrap(), query);
        }
        for bad in [
            "shedlock_table=l",
            "neighbours=advisory&shedlock_table=l",
            "neighbours=shedlock&shedlock_table=a.b.c",
            "neighbours=shedlock&shedlock_table=a-b",
            "neighbours=shedlock&shedlock_table=",
            "neighbours=shedlock&shedlock_columns=a,b,c",
            "neighbours=shedlock&shedlock_columns=a,b,c,1d",
        ] {
            assert!(setting(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_plain_words_stand_in_statements() {
        for good in ["lockkit", "_a", "shop_2"] {
            assert!(is_plain(good), "{good}");
        }
        for bad in ["", "2a", "a-b", "A", "a.b", "a\"b", "é", &"a".repeat(41)] {
            assert!(!is_plain(bad), "{bad}");
        }
    }
}
