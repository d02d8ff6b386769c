//! What calibration leaves behind: the transforms, means, clips and segments of a model's layers.
//!
//! A [`Calibration`] is read from, and written to, one safetensors file, the *artifact*. Its
//! format is in `docs/artifact.md`. Everything in it is checked when it is loaded or built, so a
//! [`Calibration`] that exists fits its method and itself; [`Calibration::check`] says whether it
//! fits a model.
//!
//! Vectors are rows, throughout:
//! - a key is stored as `y = (k - mean) A`, and a query becomes `q' = q M` with `A Mᵀ = I`, so that
//!   `q' · y = q · (k - mean)`; the mean moves all logits of a query alike, which softmax ignores;
//! - a value is stored as `y = (v - mean) A`, and the output is `o = o' C + mean` with `A C = I`.
//!
//! Where `A` is orthogonal, `M = A` and `C = Aᵀ`, and neither is stored.

mod artifact;
mod builder;
mod container;
mod file;
#[cfg(feature = "calibrate")]
pub mod learner;
#[cfg(feature = "calibrate")]
pub mod solve;
#[cfg(feature = "calibrate")]
pub mod statistics;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use builder::CalibrationBuilder;
#[cfg(feature = "calibrate")]
pub use solve::{Solution, SolveOptions, solve};
#[cfg(feature = "calibrate")]
pub use statistics::{Statistics, StatisticsConfig};

use crate::error::{Error, Result};
use crate::quantizer::{ChannelBits, Quantizer, Role, Segment};

/// One square matrix for all KV heads of a layer, or one for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrices {
    /// 1 (shared), or the KV heads of the model.
    pub heads: usize,
    /// Rows and columns.
    pub head_dim: usize,
    /// `[heads, head_dim, head_dim]`, row-major.
    pub data: Vec<f32>,
}

impl Matrices {
    /// One matrix, `[head_dim, head_dim]` row-major, for all KV heads.
    pub fn shared(head_dim: usize, data: Vec<f32>) -> Self {
        Self {
            heads: 1,
            head_dim,
            data,
        }
    }

    /// One matrix for each KV head, `[heads, head_dim, head_dim]` row-major.
    pub fn per_head(heads: usize, head_dim: usize, data: Vec<f32>) -> Self {
        Self {
            heads,
            head_dim,
            data,
        }
    }
}

/// What was learnt about the keys, or about the values, of one layer. What is `None` is left as
/// the method has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SideCalibration {
    /// `A`, applied on arrival. There exactly where the method's transform is calibrated.
    pub transform: Option<Matrices>,
    /// What undoes `A`, as it is applied: `M = A⁻ᵀ` to queries, or `C = A⁻¹` to outputs. `None`
    /// where `A` is orthogonal.
    pub inverse: Option<Matrices>,
    /// Subtracted before the transform; `[kv_heads, head_dim]`, row-major.
    pub mean: Option<Vec<f32>>,
    /// The quantile to which a token's magnitudes are clamped, in (0, 1).
    pub clip: Option<f32>,
    /// Bits by channel, in the order of the transform's output; the lengths add up to 16.
    pub segments: Option<Vec<Segment>>,
}

/// What was learnt about one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerCalibration {
    /// Keys, and the queries that meet them.
    pub key: SideCalibration,
    /// Values, and the outputs made of them.
    pub value: SideCalibration,
}

impl LayerCalibration {
    /// The side of a role.
    pub fn side(&self, role: Role) -> &SideCalibration {
        match role {
            Role::Key => &self.key,
            Role::Value => &self.value,
        }
    }
}

/// A calibrated method's data for one model. Cheap to clone.
#[derive(Clone)]
pub struct Calibration(Arc<Contents>);

struct Contents {
    /// Where it came from, for messages.
    path: PathBuf,
    method: String,
    fingerprint: String,
    n_kv_heads: usize,
    head_dim: usize,
    served_length: usize,
    tokens: usize,
    layers: Vec<LayerCalibration>,
    notes: BTreeMap<String, String>,
}

impl Calibration {
    /// Reads and checks the artifact at `path`.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read; [`Error::Artifact`] if it is damaged, of another
    /// version, or does not fit its method.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::from_bytes(&file::read_file(path)?, path)
    }

    /// Checks the bytes of an artifact. `path` is only for messages.
    ///
    /// # Errors
    /// [`Error::Artifact`], as for [`Calibration::load`].
    pub fn from_bytes(bytes: &[u8], path: impl Into<PathBuf>) -> Result<Self> {
        Self::checked(artifact::decode(bytes, path.into())?)
    }

    /// The bytes of the artifact; the same contents always give the same bytes.
    ///
    /// # Errors
    /// [`Error::Artifact`] if the header cannot be written.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        artifact::encode(&self.0)
    }

    /// Writes the artifact, at once or not at all: whoever reads `path` meanwhile, or after a
    /// crash, sees the old file or the whole new one.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder cannot be written; `path` is then as it was.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        file::write_file(path.as_ref(), &self.to_bytes()?)
    }

    fn checked(contents: Contents) -> Result<Self> {
        let calibration = Self(Arc::new(contents));
        validate::validate(&calibration)?;
        Ok(calibration)
    }

    fn error(&self, reason: impl Into<String>) -> Error {
        Error::Artifact {
            path: self.0.path.clone(),
            reason: reason.into(),
        }
    }

    /// Whether this artifact was made for a model of `n_layers` layers, `n_kv_heads` KV heads and
    /// `head_dim` channels and, if it is known, of this `fingerprint`.
    ///
    /// # Errors
    /// [`Error::Artifact`] with the first that differs.
    pub fn check(
        &self,
        fingerprint: Option<&str>,
        n_layers: usize,
        n_kv_heads: usize,
        head_dim: usize,
    ) -> Result<()> {
        if let Some(fingerprint) = fingerprint.filter(|given| *given != self.fingerprint()) {
            return Err(self.error(format!(
                "made for model `{}`, this is `{fingerprint}`: calibrate this model",
                self.fingerprint()
            )));
        }
        for (what, made_for, found) in [
            ("layers", self.n_layers(), n_layers),
            ("KV heads", self.n_kv_heads(), n_kv_heads),
            ("channels per head (head_dim)", self.head_dim(), head_dim),
        ] {
            if made_for != found {
                return Err(self.error(format!(
                    "made for {made_for} {what}, the cache has {found}: calibrate this model"
                )));
            }
        }
        Ok(())
    }

    /// A side's quantiser with the clip and the segments of one layer, where the artifact has
    /// them. A layer past the end keeps the method's.
    pub fn adjust_quantizer(&self, layer: usize, role: Role, quantizer: &Quantizer) -> Quantizer {
        let mut quantizer = quantizer.clone();
        let Some(layer) = self.0.layers.get(layer) else {
            return quantizer;
        };
        let side = layer.side(role);
        if side.clip.is_some() {
            quantizer.clip = side.clip;
        }
        if let Some(segments) = &side.segments {
            quantizer.bits = ChannelBits::Segments(segments.clone().into());
        }
        quantizer
    }

    /// The preset that this is for.
    pub fn method(&self) -> &str {
        &self.0.method
    }

    /// The model that this was made from.
    pub fn fingerprint(&self) -> &str {
        &self.0.fingerprint
    }

    /// Layers of the model.
    pub fn n_layers(&self) -> usize {
        self.0.layers.len()
    }

    /// KV heads of each layer.
    pub fn n_kv_heads(&self) -> usize {
        self.0.n_kv_heads
    }

    /// Channels of a head.
    pub fn head_dim(&self) -> usize {
        self.0.head_dim
    }

    /// Positions, in tokens, that the statistics cover; longer contexts are served less well.
    pub fn served_length(&self) -> usize {
        self.0.served_length
    }

    /// Tokens that the statistics were taken from.
    pub fn tokens(&self) -> usize {
        self.0.tokens
    }

    /// What whoever made it wrote down beside: the digest of the statistics, of texts, versions.
    pub fn notes(&self) -> &BTreeMap<String, String> {
        &self.0.notes
    }

    /// The same with a further note, such as the digest of the texts that were read.
    ///
    /// # Errors
    /// [`Error::Artifact`] for a key of the format itself.
    pub fn with_note(&self, key: impl Into<String>, value: impl Into<String>) -> Result<Self> {
        let mut builder = CalibrationBuilder::new(
            self.method(),
            self.n_layers(),
            self.n_kv_heads(),
            self.head_dim(),
        )
        .fingerprint(self.fingerprint())
        .served_length(self.served_length())
        .tokens(self.tokens());
        for (key, value) in self.notes() {
            builder = builder.note(key, value);
        }
        for (index, layer) in self.layers().iter().enumerate() {
            builder = builder.layer(index, layer.clone());
        }
        builder.note(key, value).build()
    }

    /// All layers, in the order of the model.
    pub fn layers(&self) -> &[LayerCalibration] {
        &self.0.layers
    }

    /// The layer at `index`.
    ///
    /// # Panics
    /// Past the end, like any index; [`Calibration::layers`] has a checked `get`.
    pub fn layer(&self, index: usize) -> &LayerCalibration {
        &self.0.layers[index]
    }

    /// The file that this came from, or `(not saved)`.
    pub fn path(&self) -> &Path {
        &self.0.path
    }
}

impl std::fmt::Debug for Calibration {
    /// Without the numbers, of which there are millions.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calibration")
            .field("path", &self.0.path)
            .field("method", &self.0.method)
            .field("fingerprint", &self.0.fingerprint)
            .field("n_layers", &self.n_layers())
            .field("n_kv_heads", &self.0.n_kv_heads)
            .field("head_dim", &self.0.head_dim)
            .field("served_length", &self.0.served_length)
            .field("tokens", &self.0.tokens)
            .finish_non_exhaustive()
    }
}
