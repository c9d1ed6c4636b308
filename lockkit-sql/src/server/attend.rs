//! How claims that wait are asked about, and how messages come, where the server has them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkit_core::clock::{BootClock, Clock};
use lockkit_core::driver::{Grant, Renewal};
use lockkit_core::waiting::{Attendant, Waiting};
use lockkit_core::{Claim, Error};

use super::Shared;
use super::dialect::{Dialect, Verb};
use crate::wake::Tag;

type Answer = (Renewal, Option<Duration>);

impl<D: Dialect> Attendant for Shared<D> {
    type Name = Tag;

    fn waiting(&self) -> &Waiting<Tag> {
        &self.wakes.claims
    }

    async fn ask(&self, claims: &[Arc<Claim>]) -> Vec<Result<Answer, Error>> {
        let answers = match self.wakes.claims.is_told() {
            // It is only asked when a lease ends: somebody has to move the line on.
            true => self.move_on(claims).await,
            false => self.look(claims).await,
        };
        match answers {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(error) => claims.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn listen(driver: Weak<Self>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let Some(driver) = driver.upgrade() else { return Ok(()) };
        let (options, wakes) = (driver.connections.options(), driver.wakes.clone());
        drop(driver);
        let heard = |message: Option<&str>| match message {
            Some(message) => wakes.heard(message),
            None => {
                wakes.claims.is_listening();
                wakes.registers.ring(None);
            }
        };
        Ok(D::listen(&options, &wakes.channel(), &heard).await?)
    }
}

impl<D: Dialect> Shared<D> {
    /// Looks, which disturbs nobody, and moves on the lines that stand still behind what has ended.
    async fn look(&self, claims: &[Arc<Claim>]) -> Result<Vec<Answer>, Error> {
        let mut answers = self.about(Verb::Look, claims).await?;
        let is_stuck = |(state, lease): &Answer| {
            matches!(state, Renewal::Waits { .. }) && *lease == Some(Duration::ZERO)
        };
        let stuck: Vec<_> = (0..claims.len()).filter(|at| is_stuck(&answers[*at])).collect();
        if !stuck.is_empty() {
            let claims: Vec<_> = stuck.iter().map(|at| claims[*at].clone()).collect();
            let moved = self.move_on(&claims).await?;
            stuck.into_iter().zip(moved).for_each(|(at, answer)| answers[at] = answer);
        }
        Ok(answers)
    }

    /// Renews, which moves lines on.
    async fn move_on(&self, claims: &[Arc<Claim>]) -> Result<Vec<Answer>, Error> {
        let sent = BootClock.now();
        let mut answers = self.about(Verb::Renew, claims).await?;
        for (state, _) in &mut answers {
            if let Renewal::Holds(grant) = state {
                *grant = Grant { since: Some(sent), ..*grant };
            }
        }
        Ok(answers)
    }
}
