//! Hand-overs of one lock within a process on database servers: what they cost, and who learns of them.

mod costs;
mod grants;
mod queue_length;
mod scene;
mod storm;
