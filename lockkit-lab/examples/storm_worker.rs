//! The program that this crate's tests start as other processes, on whatever a URL names.

use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let connect =
        |url: String, settings| async move { lockkit::connect_with(&url, settings).await };
    lockkit_lab::worker::serve(connect).await
}
