//! Renewing: one flight for all claims of the process, whatever their number. The session is what
//! lives; of the claims one only asks whether their nodes are still there.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::join_all;
use lockkit_core::clock::{BootClock, Clock};
use lockkit_core::driver::{Ended, Renewal};
use lockkit_core::{Claim, Error, Mode};
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteError};

use crate::driver::Inner;
use crate::failure::failed;
use crate::line::{Line, Verdict};
use crate::node::Label;
use crate::paths::{Kind, Tag, broken_tag};
use crate::places::Place;
use crate::session::Session;

/// What one flight brought back.
struct News {
    /// All ephemeral nodes of the session under the root.
    nodes: HashSet<String>,
    /// The records of breaks, by their folder and the claim's tag.
    breaks: HashMap<String, HashMap<Tag, String>>,
    /// The lists in which claims wait, by their folder.
    lines: HashMap<String, Line>,
}

impl Inner {
    pub(crate) async fn renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<Renewal>, Error> {
        let session = self.sessions.get().await?;
        let places: Vec<_> = claims.iter().map(|claim| self.places.of(claim.id)).collect();
        let news = self.news(&session, claims, &places).await?;
        let mut answers = Vec::with_capacity(claims.len());
        for (claim, place) in claims.iter().zip(places) {
            let answer = self.renewal(&session, claim, place, &news).await?;
            if matches!(answer, Renewal::Ended(Ended::NotInLine | Ended::SessionEnded)) {
                self.places.forget(claim.id);
            }
            answers.push(answer);
        }
        self.sweep(&session, &news.nodes);
        Ok(answers)
    }

    async fn news(
        &self,
        session: &Session,
        claims: &[Arc<Claim>],
        places: &[Option<Place>],
    ) -> Result<News, Error> {
        let breaks: BTreeSet<_> =
            claims.iter().map(|claim| self.layout.breaks(&claim.key.namespace)).collect();
        let waiting = places.iter().flatten().filter(|place| !place.holds());
        let lines: BTreeSet<_> = waiting.map(|place| place.folder.clone()).collect();
        // All of these go out now, in this order: what is read is at least as new as the sync.
        let synced = session.ask_majority(self.layout.root());
        let nodes = session.client.list_ephemerals(self.layout.claims());
        let breaks_listed: Vec<_> =
            breaks.iter().map(|path| session.client.list_children(path)).collect();
        let lines_listed: Vec<_> =
            lines.iter().map(|path| session.client.list_children(path)).collect();
        let all =
            async { tokio::join!(synced, nodes, join_all(breaks_listed), join_all(lines_listed)) };
        let (synced, nodes, breaks_listed, lines_listed) = session.answers(all).await?;
        synced.map_err(failed)?;
        let mut news = News {
            nodes: nodes.map_err(failed)?.into_iter().collect(),
            breaks: HashMap::new(),
            lines: HashMap::new(),
        };
        for (folder, listed) in breaks.into_iter().zip(breaks_listed) {
            let records = or_empty(listed)?.into_iter();
            let by_tag = records.filter_map(|name| broken_tag(&name).map(|tag| (tag, name)));
            news.breaks.insert(folder, by_tag.collect());
        }
        for (folder, listed) in lines.into_iter().zip(lines_listed) {
            let line = self.line_of(session, &folder, or_empty(listed)?).await?;
            news.lines.insert(folder, line);
        }
        Ok(news)
    }

    async fn renewal(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        place: Option<Place>,
        news: &News,
    ) -> Result<Renewal, Error> {
        let records = news.breaks.get(&self.layout.breaks(&claim.key.namespace));
        if let Some(name) = records.and_then(|records| records.get(&Tag::of(claim.id)))
            && let Some(record) = self.break_record(session, &claim.key, name).await?
        {
            // Politely broken, it is not renewed, and leaves when its own lease is over.
            return Ok(Renewal::Ended(Ended::Broken(record)));
        }
        let gone = Renewal::Ended(Ended::NotInLine);
        let Some(place) = place else {
            return Ok(gone);
        };
        if place.session.id() != session.id() {
            return Ok(Renewal::Ended(Ended::SessionEnded));
        }
        let Some(node) = &place.node else {
            return Ok(gone);
        };
        if !news.nodes.contains(&node.path) {
            return Ok(gone);
        }
        let verdict = match node.holds {
            true => Some(Verdict::Holds),
            false => {
                news.lines.get(&place.folder).and_then(|line| line.verdict(&node.name, node.token))
            }
        };
        let holds = matches!(verdict, Some(Verdict::Holds));
        // Its own lease may have ended while the answer was under way.
        let Some(place) = self.places.renew(claim, holds) else {
            return Ok(gone);
        };
        Ok(match verdict {
            Some(Verdict::Holds) => Renewal::Holds(place.grant(node.token, claim.hold_ttl)),
            Some(Verdict::Waits(ahead)) => Renewal::Waits { ahead: ahead.count },
            _ => gone,
        })
    }

    /// Deletes nodes of this session that nobody here owns: what an acquire left behind whose
    /// answer was lost and whose release came too early to find it.
    fn sweep(&self, session: &Session, nodes: &HashSet<String>) {
        if !self.sessions.are_own() {
            return; // the nodes may be those of another driver on the same client
        }
        let owned = self.places.tags();
        for path in nodes {
            let name = path.rsplit('/').next().unwrap_or_default().to_owned();
            let tag = match Kind::of(name) {
                Kind::Claim(child) => child.tag,
                Kind::Downgraded(tag) => tag,
                Kind::Given(_) | Kind::Foreign => continue,
            };
            if !owned.contains(&tag) {
                // It goes out when it is called; nobody waits for the answer.
                drop(session.client.delete(path, None));
            }
        }
    }

    pub(crate) async fn downgrade(&self, claim: &Claim) -> Result<Renewal, Error> {
        let session = self.sessions.get().await?;
        let Some(place) = self.places.of(claim.id) else {
            return Ok(Renewal::Ended(Ended::NotInLine));
        };
        let node = match &place.node {
            Some(node) if place.session.id() == session.id() => node,
            _ => return Ok(Renewal::Ended(Ended::SessionEnded)),
        };
        if claim.mode == Mode::Shared && !node.name.starts_with("x-") {
            return self.renewed_alone(claim).await;
        }
        let acls = self.sessions.options().acls();
        let marker = place.marker();
        let sent = BootClock.now();
        let mut multi = session.client.new_multi_writer();
        // The own node's data changes along, which tells those who watch it to look again.
        let marked = multi
            .add_set_data(&node.path, &Label::of_downgraded(claim), None)
            .and_then(|()| multi.add_create(&marker, b"", &CreateMode::Ephemeral.with_acls(acls)));
        marked.map_err(failed)?;
        let done = session.answers(multi.commit()).await?;
        match done {
            Ok(_) => {
                session.confirm(sent);
                let place = self.places.renew(claim, true);
                let gone = Renewal::Ended(Ended::NotInLine);
                Ok(place.map_or(gone, |p| Renewal::Holds(p.grant(node.token, claim.hold_ttl))))
            }
            Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. })
            | Err(MultiWriteError::OperationFailed { source: ZkError::NodeExists, .. }) => {
                self.renewed_alone(claim).await
            }
            Err(error) => Err(failed(error.into())),
        }
    }

    async fn renewed_alone(&self, claim: &Claim) -> Result<Renewal, Error> {
        let answers = self.renew(&[Arc::new(claim.clone())]).await?;
        Ok(answers.into_iter().next().unwrap_or(Renewal::Ended(Ended::NotInLine)))
    }
}

fn or_empty(listed: Result<Vec<String>, ZkError>) -> Result<Vec<String>, Error> {
    match listed {
        Err(ZkError::NoNode) => Ok(Vec::new()),
        other => other.map_err(failed),
    }
}
