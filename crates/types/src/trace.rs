//! Where in a trace something belongs, in the ids of W3C Trace Context, <https://www.w3.org/TR/trace-context/>. Nothing
//! is decided by it.

/// The span of an exported operation: work for the operation in other processes is a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The span in it.
    pub span_id: [u8; 8],
}
