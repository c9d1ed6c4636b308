//! Bodies of requests that are answered without having been read: refusals, mostly.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use hyper::body::{Frame, Incoming, SizeHint};
use lockkit_core::driver::locked;

/// A body that comes back when it is dropped before its end.
pub(crate) struct Lent {
    body: Option<Incoming>,
    back: Unread,
}

/// Where it comes back.
#[derive(Clone, Default)]
pub(crate) struct Unread(Arc<Mutex<Option<Incoming>>>);

/// What is read of a body only so that its connection can be used again, and for how long.
const DISCARDED: (usize, Duration) = (64 << 10, Duration::from_secs(1));

impl Unread {
    /// The body, for the handler of the request.
    pub(crate) fn lend(&self, body: Incoming) -> Lent {
        Lent { body: Some(body), back: self.clone() }
    }

    /// Reads what is left of the body where that is little; says whether nothing is left.
    ///
    /// Nothing is read for a client that `waits_for_invitation`: that would invite it.
    pub(crate) async fn discard(&self, waits_for_invitation: bool) -> bool {
        let Some(body) = locked(&self.0).take() else {
            return true;
        };
        let (most, patience) = DISCARDED;
        let length = hyper::body::Body::size_hint(&body).lower();
        if waits_for_invitation || usize::try_from(length).map_or(true, |length| length > most) {
            return false;
        }
        let rest = tokio::time::timeout(patience, to_bytes(Body::new(body), most)).await;
        matches!(rest, Ok(Ok(_)))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let unread = self.body.take().filter(|body| !hyper::body::Body::is_end_stream(body));
        *locked(&self.back.0) = unread;
    }
}

impl hyper::body::Body for Lent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(body).poll_frame(context);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            // Of a chunked body nothing else says that it was read to its end.
            self.body = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(hyper::body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(hyper::body::Body::size_hint).unwrap_or_default()
    }
}
