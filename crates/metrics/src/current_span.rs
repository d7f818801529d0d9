//! The span that a thread works for now, as far as it is exported: requests to OSDs name it. It is set while a future of
//! the operation is polled, so it goes with the operation through whatever awaits whatever, but not into tasks of their
//! own: [`carry`] takes it there.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;

use atoll_types::TraceContext;

/// Current work of a thread.
#[derive(Clone, Copy)]
enum Work {
    /// Something that is no operation.
    Other,
    /// An operation, and its span if that is exported.
    Operation(Option<TraceContext>),
}

thread_local! {
    static WORK: Cell<Work> = const { Cell::new(Work::Other) };
}

/// The span that this thread works for now, if there is one and it is exported.
pub fn current_span() -> Option<TraceContext> {
    match WORK.get() {
        Work::Other => None,
        Work::Operation(span) => span,
    }
}

/// As long as this lives, the thread works for a span.
#[must_use]
pub struct Entered(Work);

/// From here on the thread works for this span.
pub fn enter(span: Option<TraceContext>) -> Entered {
    Entered(WORK.replace(Work::Operation(span)))
}

impl Drop for Entered {
    fn drop(&mut self) {
        WORK.set(self.0);
    }
}

/// The operation that this thread works for turns out to be another span, or none that is exported.
pub fn change_span(span: Option<TraceContext>) {
    if let Work::Operation(_) = WORK.get() {
        WORK.set(Work::Operation(span));
    }
}

/// Works for a span, which is asked for at each poll of the future.
pub async fn within<F: Future>(span: impl Fn() -> Option<TraceContext>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let _entered = enter(span());
        future.as_mut().poll(context)
    })
    .await
}

/// Works for the span that this thread works for now, in whatever task that is done.
pub fn carry<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let span = current_span();
    within(move || span, future)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    const SPAN: TraceContext = TraceContext { trace_id: [1; 16], span_id: [2; 8] };

    /// Polls a future until it is ready, with nothing of a span in between.
    fn run<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(current_span(), None);
            if let Poll::Ready(output) = polled {
                return output;
            }
        }
    }

    /// Is ready at the second poll.
    async fn pause() {
        let mut has_paused = false;
        poll_fn(|_| if std::mem::replace(&mut has_paused, true) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    #[test]
    fn an_operation_has_its_span_whenever_it_resumes_and_nothing_else_has_it() {
        let other = TraceContext { span_id: [3; 8], ..SPAN };
        run(within(|| Some(SPAN), async {
            assert_eq!(current_span(), Some(SPAN));
            pause().await;
            assert_eq!(current_span(), Some(SPAN));
            run_within_another(other);
            assert_eq!(current_span(), Some(SPAN));
            change_span(None);
            assert_eq!(current_span(), None);
            pause().await;
            assert_eq!(current_span(), Some(SPAN), "it is asked for anew");
        }));
        let entered = enter(Some(SPAN));
        let carried = carry(async {
            pause().await;
            current_span()
        });
        drop(entered);
        assert_eq!(run(carried), Some(SPAN), "in a task of its own");
        change_span(Some(SPAN));
        assert_eq!(current_span(), None, "this is no operation");
    }

    fn run_within_another(other: TraceContext) {
        let _entered = enter(Some(other));
        assert_eq!(current_span(), Some(other));
    }
}
