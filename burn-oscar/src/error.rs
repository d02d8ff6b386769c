//! The one error type of the library.

use std::path::PathBuf;

/// What can go wrong, with the value, the limit and the remedy in each message.
///
/// An operation that returns an error leaves the cache as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The head dimension cannot be packed.
    #[error(
        "head_dim {head_dim} is not supported: it must be a multiple of {multiple} between {min} and {max}"
    )]
    HeadDim {
        /// The head dimension asked for.
        head_dim: usize,
        /// What it must be a multiple of.
        multiple: usize,
        /// The smallest that is supported.
        min: usize,
        /// The largest that is supported.
        max: usize,
    },
    /// A count that must be positive is zero.
    #[error("{what} is 0: give at least 1")]
    Zero {
        /// The name of the count.
        what: &'static str,
    },
    /// The query heads cannot be shared out among the KV heads.
    #[error(
        "{query_heads} query heads over {kv_heads} KV heads: the query heads must be a multiple, \
         with at most {max_ratio} per KV head"
    )]
    HeadRatio {
        /// Query heads of the call.
        query_heads: usize,
        /// KV heads of the cache.
        kv_heads: usize,
        /// The largest supported ratio.
        max_ratio: usize,
    },
    /// A tensor has another shape than the call needs.
    #[error("{tensor} has shape {found:?}, expected {expected}")]
    Shape {
        /// Which tensor.
        tensor: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// The expected shape, in words.
        expected: String,
    },
    /// A tensor has another element type than the cache holds.
    #[error(
        "{tensor} has dtype {found}, the cache holds {expected}: cast it, or set KvCacheConfig::with_dtype"
    )]
    Dtype {
        /// Which tensor.
        tensor: &'static str,
        /// Its dtype.
        found: String,
        /// The cache's dtype.
        expected: String,
    },
    /// The tensors of a call are on another device than the cache.
    #[error("the {tensor} is on {found}, the cache is on {expected}: move one of them")]
    Device {
        /// Which tensor.
        tensor: &'static str,
        /// Its device.
        found: String,
        /// The cache's device.
        expected: String,
    },
    /// A layer index past the end.
    #[error("layer {layer} does not exist: the cache was made for {layers} layers (0 to {})", layers - 1)]
    Layer {
        /// The layer asked for.
        layer: usize,
        /// Layers in the cache.
        layers: usize,
    },
    /// A sequence that is not, or no longer, in the cache.
    #[error("sequence {id} is not in the cache: it was freed, or belongs to another cache")]
    UnknownSequence {
        /// The sequence's number.
        id: u64,
    },
    /// The same sequence twice in one call.
    #[error("sequence {id} is named twice in one call: fork it first")]
    RepeatedSequence {
        /// The sequence's number.
        id: u64,
    },
    /// No room for another sequence.
    #[error(
        "the cache holds {max_sequences} sequences, its limit: free one, or raise \
         KvCacheConfig::with_max_sequences"
    )]
    TooManySequences {
        /// The limit.
        max_sequences: usize,
    },
    /// No pages left.
    #[error(
        "layer {layer}: {needed} more pages of {page_tokens} tokens are needed and {free} of {pages} are free: \
         shorten the prompt, free sequences, or raise KvCacheConfig::with_max_tokens"
    )]
    PoolExhausted {
        /// The layer that asked.
        layer: usize,
        /// Pages needed by the call.
        needed: usize,
        /// Pages free.
        free: usize,
        /// Pages in the pool.
        pages: usize,
        /// Tokens of a page.
        page_tokens: usize,
    },
    /// A sequence whose layers hold different numbers of tokens.
    #[error(
        "sequence {id} is in the middle of a step: its layers hold {shortest} to {longest} tokens; \
         finish the step, or truncate to {shortest}"
    )]
    UnevenLayers {
        /// The sequence's number.
        id: u64,
        /// Tokens of the shortest layer.
        shortest: usize,
        /// Tokens of the longest layer.
        longest: usize,
    },
    /// A sequence would become longer than it is.
    #[error("cannot truncate sequence {id} to {to} tokens: it holds {len}")]
    TruncateBeyond {
        /// The sequence's number.
        id: u64,
        /// The length asked for.
        to: usize,
        /// The length it has.
        len: usize,
    },
    /// A tensor holds NaN or an infinity.
    #[error(
        "layer {layer}: the {tensor} holds NaN or an infinity, which would spoil every later token; \
         nothing was stored"
    )]
    NotFinite {
        /// The layer of the call.
        layer: usize,
        /// Which tensor.
        tensor: &'static str,
    },
    /// A magnitude that the stored parameters cannot represent.
    #[error(
        "layer {layer}: the {tensor} reaches {found:e} after its transform, and {what} hold at most {limit:e}: \
         scale the activations, or keep this side exact"
    )]
    OutOfRange {
        /// The layer of the call.
        layer: usize,
        /// Which tensor.
        tensor: &'static str,
        /// The largest magnitude seen.
        found: f32,
        /// The largest that is represented.
        limit: f32,
        /// What limits it.
        what: &'static str,
    },
    /// A method name that is not in the table.
    #[error("no method is called `{name}`; there are {known}")]
    UnknownMethod {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A calibrated method without its artifact.
    #[error(
        "method `{method}` is calibrated: load an artifact with Calibration::load and use Method::calibrated"
    )]
    NeedsCalibration {
        /// The method.
        method: String,
    },
    /// A method whose parts do not fit together, or do not fit the head size.
    #[error("method `{method}`: {reason}")]
    Method {
        /// The method.
        method: String,
        /// What does not fit, and the remedy.
        reason: String,
    },
    /// A projection that cannot carry the method's value transform.
    #[error("layer {layer}: the value transform cannot be folded into the {tensor}: {reason}")]
    Fold {
        /// The layer of the projection.
        layer: usize,
        /// Which tensor of it.
        tensor: &'static str,
        /// What does not fit, and the remedy.
        reason: String,
    },
    /// A calibration artifact that cannot be used.
    #[error("calibration artifact {}: {reason}", path.display())]
    Artifact {
        /// The file.
        path: PathBuf,
        /// What is wrong, and the remedy.
        reason: String,
    },
    /// Calibration cannot go on.
    #[error("calibration: {reason}")]
    Calibration {
        /// What is wrong, and the remedy.
        reason: String,
    },
    /// A file that cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// An option of a call or of the configuration that has no meaning.
    #[error("{option} {value}: {reason}")]
    Option {
        /// The option.
        option: &'static str,
        /// The value given.
        value: String,
        /// The limit and the remedy.
        reason: &'static str,
    },
    /// A sequence that has nothing to attend to.
    #[error(
        "layer {layer} of sequence {id} holds no tokens to attend to: encode or append some first"
    )]
    NoTokens {
        /// The layer of the call.
        layer: usize,
        /// The sequence's number.
        id: u64,
    },
    /// A mask that asks for more than leaving out padding and later tokens.
    #[error("{mask} of row {row}: {reason}")]
    Mask {
        /// Which mask.
        mask: &'static str,
        /// The batch row.
        row: usize,
        /// What it asks for, and the remedy.
        reason: String,
    },
    /// A trained module that no adapter can stand in for.
    #[error("{module}: {setting} is {value}; {remedy}")]
    Module {
        /// The module's type.
        module: &'static str,
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// Why it is not served, and the remedy.
        remedy: &'static str,
    },
    /// The device failed.
    #[error("the device failed: {0}")]
    Execution(String),
}

/// Result of the library's fallible operations.
pub type Result<T> = std::result::Result<T, Error>;
