//! Conditional writes that are repeated while other clients write as well.

use crate::{Error, Result};

/// Repeats an attempt, which reads something and writes it under a condition, until it ends with a
/// result; `None` says that another client wrote in between. The attempts are counted from 0.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
/// use lockkit_core::driver::retry_conflicts;
///
/// let counter = AtomicU64::new(4);
/// let raised = retry_conflicts("mine", "others keep raising the counter", |_attempt| async {
///     let now = counter.load(SeqCst);
///     let swapped = counter.compare_exchange(now, now.max(7), SeqCst, SeqCst);
///     Ok::<_, lockkit_core::Error>(swapped.ok().map(|_| now.max(7)))
/// });
/// assert_eq!(raised.await?, 7);
/// # Ok(()) }
/// ```
///
/// # Errors
/// That of an attempt; and a retryable one that says `conflict`, after 256 attempts.
pub async fn retry_conflicts<T, E, F>(
    backend: &'static str,
    conflict: &'static str,
    mut attempt: impl FnMut(usize) -> F,
) -> Result<T, E>
where
    E: From<Error>,
    F: Future<Output = Result<Option<T>, E>>,
{
    for number in 0..256 {
        if let Some(result) = attempt(number).await? {
            return Ok(result);
        }
    }
    Err(Error::retryable(backend, conflict).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in a driver: the future of a method is sent to another thread.
    struct Store;

    #[async_trait::async_trait]
    trait Driver {
        async fn raise(&self, key: &str, fails: usize) -> Result<usize>;
    }

    #[async_trait::async_trait]
    impl Driver for Store {
        async fn raise(&self, key: &str, fails: usize) -> Result<usize> {
            retry_conflicts("mine", "others keep writing", |attempt| async move {
                tokio::task::yield_now().await;
                Ok((attempt >= fails).then_some(attempt + key.len()))
            })
            .await
        }
    }

    #[tokio::test]
    async fn an_attempt_is_repeated_until_no_other_client_comes_in_between() {
        assert_eq!(Store.raise("key", 0).await.unwrap(), 3);
        assert_eq!(Store.raise("key", 9).await.unwrap(), 12);
        let error = Store.raise("key", usize::MAX).await.unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("others keep"), "{error}");
    }
}
