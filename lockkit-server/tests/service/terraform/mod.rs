//! The protocol of Terraform's `http` backend, on the wire and with a real Terraform.

mod client;
mod limits;
mod lock;
mod program;
mod rights;
mod state;
mod versions;
