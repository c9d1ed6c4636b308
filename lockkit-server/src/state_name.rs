//! The names of what the service keeps for Terraform.

/// What the names of all heads, parts and locks of states begin with.
pub(crate) const FOLDER: &str = "lockkit.terraform/";

/// The name of a state, of the name of its lock or of one of its registers.
pub(crate) fn name_of_state(name: &str) -> Option<&str> {
    name.strip_prefix(FOLDER)
}
