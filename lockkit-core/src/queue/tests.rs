//! Exhaustive in a small scope, by property in a large one.
