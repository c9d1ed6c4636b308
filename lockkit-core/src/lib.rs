//! lockkit-core
