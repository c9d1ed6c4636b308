//! The caller of a request, and what it may do.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use lockkit_core::driver::RegisterKey;
use lockkit_core::{ClientIdentity, Name, Namespace};
use lockkit_http::wire::Code;

use crate::response::ErrorResponse;
use crate::state_name::name_of_state;
use crate::tokens::{Grants, Permission};

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    /// An address.
    Address(IpAddr),
    /// A user of this host, by a Unix socket.
    User(u32),
    /// Not known: the router runs in a server of the program's own.
    Unknown,
}

impl Peer {
    /// Of IPv6, its network: one host may have all addresses of it.
    pub(crate) fn of(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & !u128::from(u64::MAX)).into()),
            v4 => v4,
        })
    }
}

/// Whose requests are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CallerId {
    /// All that have a token of this name.
    Named(Arc<str>),
    /// Without tokens: all from there.
    At(Peer),
}

/// The sender of a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) who: CallerId,
    /// What its token allows; `None` without tokens: everything.
    grants: Option<Arc<Grants>>,
}

impl Caller {
    /// A caller of a service without tokens.
    pub(crate) fn at(peer: Peer) -> Self {
        Self { who: CallerId::At(peer), grants: None }
    }

    /// The caller with the token that has these grants.
    pub(crate) fn with(grants: Arc<Grants>) -> Self {
        Self { who: CallerId::Named(grants.name.clone()), grants: Some(grants) }
    }

    /// The name of its token; empty without tokens.
    pub(crate) fn name(&self) -> &str {
        match &self.who {
            CallerId::Named(name) => name,
            CallerId::At(_) => "",
        }
    }

    /// The client that breaks a claim. A caller with a token goes by the token's name: its own word is
    /// no proof.
    pub(crate) fn breaker(&self, sent: Option<ClientIdentity>) -> ClientIdentity {
        let by = sent.unwrap_or_else(ClientIdentity::of_this_process);
        match self.name() {
            "" => by,
            name => by.with_program(name),
        }
    }

    /// Whether the caller may read something in this namespace.
    pub(crate) fn may_read_in(&self, at: &Namespace) -> bool {
        self.grants.as_ref().is_none_or(|grants| grants.allow_some(Permission::Read, at.as_str()))
    }

    /// Refuses what the caller may not do with this name: the one that the backend gets.
    pub(crate) fn check(
        &self,
        verb: Permission,
        at: &Namespace,
        name: &Name,
    ) -> Result<(), ErrorResponse> {
        self.check_names(verb, at, name.as_str())
    }

    /// Refuses a read of this register that the caller may not do. States of Terraform hold secrets in plain
    /// text, so those of other callers are out of its reach whatever else it may read.
    pub(crate) fn check_read(&self, at: &RegisterKey) -> Result<(), ErrorResponse> {
        self.check(Permission::Read, &at.namespace, &at.name)?;
        match name_of_state(at.name.as_str()) {
            Some(state) => self.check_names(Permission::Terraform, &at.namespace, state),
            None => Ok(()),
        }
    }

    /// Refuses a write of this register that the caller may not do. The registers of a state are
    /// refused to all: one that is not as the service wrote it is a state that cannot be read.
    pub(crate) fn check_write(&self, at: &RegisterKey) -> Result<(), ErrorResponse> {
        self.check(Permission::Lock, &at.namespace, &at.name)?;
        match name_of_state(at.name.as_str()) {
            Some(_) => {
                let detail = "this register is part of a Terraform state, which is written at \
                              /v1/terraform/NAME only";
                Err(ErrorResponse::new(Code::Forbidden, detail))
            }
            None => Ok(()),
        }
    }

    /// Whether the caller may see this register in a listing.
    pub(crate) fn may_see(&self, at: &Namespace, register: &Name) -> bool {
        let Some(grants) = &self.grants else { return true };
        name_of_state(register.as_str())
            .is_none_or(|state| grants.allow(Permission::Terraform, at.as_str(), state))
    }

    /// Refuses what the caller may not do with every name that begins so.
    pub(crate) fn check_names(
        &self,
        verb: Permission,
        at: &Namespace,
        names: &str,
    ) -> Result<(), ErrorResponse> {
        match &self.grants {
            Some(grants) if !grants.allow(verb, at.as_str(), names) => {
                let detail = format!(
                    "the token {:?} has no right to {verb} there (namespace {:?}, name {names:?})",
                    self.name(),
                    at.as_str(),
                );
                Err(ErrorResponse::new(Code::Forbidden, detail))
            }
            _ => Ok(()),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ErrorResponse> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| ErrorResponse::new(Code::Unauthorized, "nobody looked who this is"))
    }
}
