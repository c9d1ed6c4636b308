//! Renewing: one flight for all claims of a session, whatever their number. The session is what
//! lives; of the claims one only asks whether their nodes are still there.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::join_all;
use lockkit_core::clock::{Clock, SteadyClock};
use lockkit_core::driver::{ClaimData, ClaimEnd, Renewal};
use lockkit_core::queue::Verdict;
use lockkit_core::{Claim, Error, Mode};
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteError};

use crate::failure::{failed, if_there};
use crate::line::Line;
use crate::lists::line_of;
use crate::locks::Locks;
use crate::paths::{Kind, Tag, broken_tag};
use crate::places::Place;
use crate::session::Session;

/// A claim that is to be renewed.
struct Asked<'a> {
    /// Its place in what was asked.
    at: usize,
    claim: &'a Claim,
    place: Option<Place>,
}

/// What one flight brought back.
struct News {
    /// All ephemeral nodes of the session under the root.
    nodes: HashSet<String>,
    /// The records of breaks, by their folder and the claim's tag.
    breaks: HashMap<String, Result<HashMap<Tag, String>, Error>>,
    /// The lists in which claims wait, by their folder.
    lines: HashMap<String, Result<Line, Error>>,
}

impl Locks {
    /// One flight for each session that claims live in, all at once. What fails in one says nothing
    /// of the others.
    pub(crate) async fn renew(&self, claims: &[Arc<Claim>]) -> Vec<Result<Renewal, Error>> {
        let _renewing = self.emptied.renewing();
        let mut flights: HashMap<Option<i64>, Vec<Asked<'_>>> = HashMap::new();
        for (at, claim) in claims.iter().enumerate() {
            let place = self.places.of(claim.id);
            let lives = place.as_ref().map(|place| &place.session).filter(|s| !s.has_ended());
            let id = lives.map(|session| session.id());
            flights.entry(id).or_default().push(Asked { at, claim, place });
        }
        let flights = flights.into_iter().map(|(id, asked)| self.flight(id, asked));
        let mut answers: Vec<_> = join_all(flights).await.into_iter().flatten().collect();
        answers.sort_by_key(|(at, _)| *at);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Renews claims that live in the session of this id, or in none that lasts.
    async fn flight(
        &self,
        id: Option<i64>,
        asked: Vec<Asked<'_>>,
    ) -> Vec<(usize, Result<Renewal, Error>)> {
        let session = match asked.iter().find_map(|asked| asked.place.as_ref()) {
            Some(place) if id.is_some() => Ok(place.session.clone()),
            _ => self.sessions.get().await,
        };
        let news = match &session {
            Ok(session) => self.news(session, &asked).await,
            Err(error) => Err(error.clone()),
        };
        let (session, news) = match (session, news) {
            (Ok(session), Ok(news)) => (session, news),
            (_, Err(error)) | (Err(error), _) => {
                return asked.iter().map(|asked| (asked.at, Err(error.clone()))).collect();
            }
        };
        let mut answers = Vec::with_capacity(asked.len());
        for Asked { at, claim, place } in asked {
            let answer = self.renewal(&session, claim, place, &news).await;
            if matches!(answer, Ok(Renewal::Ended(ClaimEnd::NotFound | ClaimEnd::SessionEnded))) {
                self.places.forget(claim.id);
            }
            answers.push((at, answer));
        }
        self.sweep(&session, &news.nodes);
        answers
    }

    async fn news(&self, session: &Session, asked: &[Asked<'_>]) -> Result<News, Error> {
        let breaks: BTreeSet<_> =
            asked.iter().map(|asked| self.layout.breaks(&asked.claim.key.namespace)).collect();
        let places = asked.iter().flat_map(|asked| &asked.place);
        let waiting = places.filter(|place| !place.holds());
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
            let by_tag = if_there(listed).map(|records| {
                let tagged = |name: String| broken_tag(&name).map(|tag| (tag, name));
                records.into_iter().flatten().filter_map(tagged).collect()
            });
            news.breaks.insert(folder, by_tag);
        }
        for (folder, listed) in lines.into_iter().zip(lines_listed) {
            let line = match if_there(listed) {
                Ok(names) => line_of(session, &folder, names.unwrap_or_default()).await,
                Err(error) => Err(error),
            };
            news.lines.insert(folder, line);
        }
        Ok(news)
    }

    async fn renewal(
        &self,
        session: &Session,
        claim: &Claim,
        place: Option<Place>,
        news: &News,
    ) -> Result<Renewal, Error> {
        let records = told(&news.breaks, &self.layout.breaks(&claim.key.namespace))?;
        if let Some(name) = records.and_then(|records| records.get(&Tag::of(claim.id)))
            && let Some(record) = self.break_record(session, &claim.key, name).await?
        {
            // Gracefully broken, it is not renewed, and leaves when its own lease is over.
            return Ok(Renewal::Ended(ClaimEnd::Broken(record)));
        }
        let gone = Renewal::Ended(ClaimEnd::NotFound);
        let Some(place) = place else {
            return Ok(gone);
        };
        if place.session.id() != session.id() {
            return Ok(Renewal::Ended(ClaimEnd::SessionEnded));
        }
        let Some(node) = &place.node else {
            return Ok(gone);
        };
        if !news.nodes.contains(&node.path) {
            return Ok(gone);
        }
        let verdict = match node.holds {
            true => Some(Verdict::Holds),
            false => told(&news.lines, &place.folder)?
                .and_then(|line| line.verdict(&node.name, node.token)),
        };
        let holds = matches!(verdict, Some(Verdict::Holds));
        // Its own lease may have ended while the answer was under way.
        let Some(place) = self.places.renew(claim, holds) else {
            return Ok(gone);
        };
        Ok(match verdict {
            Some(Verdict::Holds) => Renewal::Holds(place.grant(node.token, claim)),
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
                Kind::Limit(_) | Kind::Foreign => continue,
            };
            if !owned.contains(&tag) {
                // It goes out when it is called; nobody waits for the answer.
                drop(session.client.delete(path, None));
            }
        }
    }

    pub(crate) async fn downgrade(&self, claim: &Claim) -> Result<Renewal, Error> {
        let Some(place) = self.places.of(claim.id) else {
            return Ok(Renewal::Ended(ClaimEnd::NotFound));
        };
        let session = &place.session;
        let node = match &place.node {
            Some(node) if !session.has_ended() => node,
            _ => return Ok(Renewal::Ended(ClaimEnd::SessionEnded)),
        };
        if claim.mode == Mode::Shared && !node.name.starts_with("x-") {
            return self.renewed_alone(claim).await;
        }
        let acls = self.sessions.options().acls();
        let marker = format!("{}/{}", place.folder, place.tag.marker());
        let sent = SteadyClock.now();
        let data = ClaimData::of(claim).with_ttl(session.lease(claim.hold_ttl)).downgraded();
        let mut multi = session.client.new_multi_writer();
        // The own node's data changes along, which tells those who watch it to look again.
        let marked = multi
            .add_set_data(&node.path, &data.to_json(), None)
            .and_then(|()| multi.add_create(&marker, b"", &CreateMode::Ephemeral.with_acls(acls)));
        marked.map_err(failed)?;
        let done = session.answers(multi.commit()).await?;
        match done {
            Ok(_) => {
                session.confirm(sent);
                let place = self.places.renew(claim, true);
                let gone = Renewal::Ended(ClaimEnd::NotFound);
                Ok(place.map_or(gone, |p| Renewal::Holds(p.grant(node.token, claim))))
            }
            Err(MultiWriteError::OperationFailed {
                source: ZkError::NoNode | ZkError::NodeExists,
                ..
            }) => self.renewed_alone(claim).await,
            Err(error) => Err(failed(error.into())),
        }
    }

    async fn renewed_alone(&self, claim: &Claim) -> Result<Renewal, Error> {
        let answers = self.renew(&[Arc::new(claim.clone())]).await;
        answers.into_iter().next().unwrap_or(Ok(Renewal::Ended(ClaimEnd::NotFound)))
    }
}

/// What was told of one thing, if it was asked for.
fn told<'a, T>(
    all: &'a HashMap<String, Result<T, Error>>,
    of: &str,
) -> Result<Option<&'a T>, Error> {
    all.get(of).map(|told| told.as_ref().map_err(Error::clone)).transpose()
}
