//! The program of docs/start.md: takes a lock, says its token, and releases it.
//!
//! `LOCKKIT_URL=sqlite:demo.db cargo run -p lockkit-examples --bin start`

#[rustfmt::skip]
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("LOCKKIT_URL")?;
    let locks = lockkit::connect(&url).await?;
    locks.mutex("demo").run(async |lock| {
        println!("alone, with token {}", lock.token()?); // send it along with every write
        anyhow::Ok(())
    }).await?; // stopped when the lock is lost, released at the end
    locks.shutdown().await;
    Ok(())
}
