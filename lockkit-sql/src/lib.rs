//! lockkit-sql
