//! The stores that this crate brings, on their servers: buckets of S3, Azure and Google Cloud Storage, NATS,
//! DynamoDB.

mod azure;
mod conformance;
mod contract;
mod dynamodb;
mod faults;
mod gcs;
mod gcs_emulator;
mod leftovers;
mod nats;
mod s3;
mod stores;
