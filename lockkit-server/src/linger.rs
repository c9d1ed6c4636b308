//! The end of a connection whose peer may still be sending.
//!
//! A socket that is closed with bytes unread is reset, and the reset may overtake the answer. So the
//! writing side is shut first, and what still comes is read for a while.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that reads on after it was shut down, if that was [asked for](Self::asked).
pub(crate) struct LingeringStream<S> {
    stream: S,
    asked: Arc<AtomicBool>,
    /// Resolves when it has read on for long enough.
    enough: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// How many bytes it still reads.
    remaining: usize,
    is_shut: bool,
}

impl<S: fmt::Debug> fmt::Debug for LingeringStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LingeringStream").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl<S> LingeringStream<S> {
    /// Reads at most `most` bytes once it was shut down, and until `enough`, whose time begins when
    /// it is first polled.
    pub(crate) fn new(
        stream: S,
        most: usize,
        enough: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let asked = Arc::new(AtomicBool::new(false));
        Self { stream, asked, enough: Box::pin(enough), remaining: most, is_shut: false }
    }

    /// What to set so that it reads on.
    pub(crate) fn asked(&self) -> Arc<AtomicBool> {
        self.asked.clone()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> LingeringStream<S> {
    fn read_on(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut bytes = [0; 8 << 10];
        while self.remaining > 0 && self.enough.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer));
            let came = buffer.filled().len();
            if read.is_err() || came == 0 {
                break;
            }
            self.remaining = self.remaining.saturating_sub(came);
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LingeringStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_shut {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
            self.is_shut = true;
        }
        if self.asked.load(Ordering::Relaxed) {
            ready!(self.read_on(context));
        }
        Poll::Ready(Ok(()))
    }
}
