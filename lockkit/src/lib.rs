//! lockkit
