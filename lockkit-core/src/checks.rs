//! Checks of claims and breaks that another program made: a lock service refuses what no backend can
//! work with. A manager has checked its own.

use crate::claim::MARK;
use crate::name::{SLOTS, check_holder, check_note};
use crate::settings::check_ttl;
use crate::{BreakRecord, Capabilities, Claim, ClientIdentity, Error, Margin, Mode, Space};

impl Claim {
    /// Refuses what no backend of these capabilities can work with: ttls, counts of permits, texts
    /// that people could not read in a line. For programs that carry claims which others made; a
    /// manager has checked its own.
    pub fn check(&self, capabilities: &Capabilities) -> Result<(), Error> {
        let margin = Margin::for_clock(capabilities.lease_clock);
        check_ttl("ttl", self.hold_ttl, margin, capabilities)?;
        check_ttl("wait_ttl", self.wait_ttl, margin, capabilities)?;
        if let Mode::Permits { permits, .. } = self.mode {
            if !capabilities.permits {
                return Err(Error::unsupported("semaphores", capabilities.backend));
            }
            if permits == 0 {
                return Err(Error::config("a semaphore gives one permit at least"));
            }
        }
        let is_slot = self.key.space == Space::Lock && self.key.name.as_str().starts_with(SLOTS);
        if is_slot && !capabilities.slots {
            return Err(Error::unsupported("slots", capabilities.backend));
        }
        let ClientIdentity { host, program, .. } = &*self.identity;
        check_holder(host)?;
        check_holder(program)?;
        // What a composed driver added stands behind its mark.
        self.note.iter().flat_map(|note| note.splitn(3, MARK)).try_for_each(check_note)
    }
}

impl BreakRecord {
    /// Refuses texts that people could not read in a line. For programs that break for others; a
    /// manager has checked its own.
    pub fn check(&self) -> Result<(), Error> {
        check_holder(&self.by.host)?;
        check_holder(&self.by.program)?;
        self.reason.as_deref().map_or(Ok(()), check_note)
    }
}
