//! The protocol of Terraform's and OpenTofu's `http` backend: states under `/v1/terraform/{name}`.
//!
//! A state is kept in registers: one [`Head`](head::Head), which is written with the token of the
//! state's lock and names its versions, and the [parts](parts) of each version. The lock is a
//! detached claim on the head's name. The service itself keeps nothing between two requests, so any
//! number of servers over one backend are one.

mod head;
mod holder;
mod info;
mod lock;
mod parts;
mod request;
mod state;
mod write;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State as Shared};
use axum::response::Response;
use lockkit_core::driver::{RegisterKey, Registers};
use lockkit_core::{Key, Name, Namespace, Space};
use lockkit_http::wire::Code;

use crate::caller::Caller;
use crate::response::ErrorResponse;
use crate::service::Service;
use crate::state_name::FOLDER;
use crate::tokens::Permission;

/// The longest name of a state: with the id of a write and the number of a part behind it, it is
/// the name of a register.
const LONGEST_NAME: usize = 400;

type Result<T> = std::result::Result<T, ErrorResponse>;

/// `/v1/terraform/{name}`. LOCK and UNLOCK are no methods that a router knows.
pub(crate) async fn state(
    Shared(service): Shared<Service>,
    caller: Caller,
    name: std::result::Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response> {
    let operation = match request.method().as_str() {
        "GET" => Operation::Get,
        "POST" => Operation::Post,
        "DELETE" => Operation::Delete,
        "LOCK" => Operation::Lock,
        "UNLOCK" => Operation::Unlock,
        _ => return Err(ErrorResponse::unknown_path()),
    };
    operation.run(Target::of(service, caller, name, request.uri().query())?, request).await
}

/// `/v1/terraform-lock/{name}`, for proxies that let no other methods pass.
pub(crate) async fn state_lock(
    Shared(service): Shared<Service>,
    caller: Caller,
    name: std::result::Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response> {
    let operation = match request.method().as_str() {
        "PUT" => Operation::Lock,
        "DELETE" => Operation::Unlock,
        _ => return Err(ErrorResponse::unknown_path()),
    };
    operation.run(Target::of(service, caller, name, request.uri().query())?, request).await
}

/// What a request asks for.
#[derive(Clone, Copy)]
enum Operation {
    Get,
    Post,
    Delete,
    Lock,
    Unlock,
}

impl Operation {
    async fn run(self, target: Target, request: Request) -> Result<Response> {
        match self {
            Self::Get => state::get(&target).await,
            Self::Post => state::post(&target, request).await,
            Self::Delete => state::delete(&target).await,
            Self::Lock => lock::lock(&target, request).await,
            Self::Unlock => lock::unlock(&target, request).await,
        }
    }
}

/// A conflict, of which Terraform shows no more than the status.
fn conflict(detail: &str) -> ErrorResponse {
    ErrorResponse::new(Code::Busy, detail)
}

/// The state that a request is about, which its caller may read and write.
struct Target {
    service: Service,
    caller: Caller,
    namespace: Namespace,
    /// The state's name, without [`FOLDER`].
    name: Name,
    /// The name of its lock and of its head.
    full_name: Name,
    /// The query's `ID`: the lock that a write belongs to.
    id: Option<String>,
    /// Whether the version before the current one is asked for.
    previous: bool,
}

impl Target {
    fn of(
        service: Service,
        caller: Caller,
        name: std::result::Result<Path<String>, PathRejection>,
        query: Option<&str>,
    ) -> Result<Self> {
        let invalid = |detail: &str| ErrorResponse::new(Code::Invalid, detail);
        let Path(name) = name.map_err(|_| invalid("the name of a state is UTF-8"))?;
        let (mut namespace, mut id, mut previous) = (None, None, false);
        for (key, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            let place = match &*key {
                "namespace" => &mut namespace,
                "ID" => &mut id,
                "version" if value == "previous" => {
                    previous = true;
                    continue;
                }
                "version" => return Err(invalid("the version to ask for is `previous`")),
                _ => continue,
            };
            if place.replace(value.into_owned()).is_some() {
                return Err(invalid("the query has a parameter twice"));
            }
        }
        let namespace = Namespace::new(namespace.unwrap_or_default())?;
        let name = Name::new(name)?;
        if name.as_str().len() > LONGEST_NAME || parts::is_name_of_part(name.as_str()) {
            let detail = "the name of a state has at most 400 bytes, and does not end as the names \
                          of its parts do";
            return Err(invalid(detail));
        }
        caller.check(Permission::Terraform, &namespace, &name)?;
        service.registers()?;
        let full_name = Name::new(format!("{FOLDER}{name}"))?;
        Ok(Self { service, caller, namespace, name, full_name, id, previous })
    }

    /// The lock.
    fn key(&self) -> Key {
        Key::new(self.namespace.clone(), Space::Lock, self.full_name.clone())
    }

    /// The register of the head.
    fn head(&self) -> RegisterKey {
        RegisterKey { namespace: self.namespace.clone(), name: self.full_name.clone() }
    }

    fn registers(&self) -> Result<&dyn Registers> {
        Ok(self.service.registers()?)
    }
}
