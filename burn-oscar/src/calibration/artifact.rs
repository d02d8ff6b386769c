//! The artifact's tensors and metadata, to and from the types of this module. `docs/artifact.md`
//! describes them for other writers.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use safetensors::tensor::Dtype;

use super::container::{self, DAMAGED, RawTensor, Strings, Tensors};
use super::{Contents, LayerCalibration, Matrices, SideCalibration};
use crate::error::{Error, Result};
use crate::quantizer::{Role, Segment};

const FORMAT: &str = "burn-oscar-calibration";
const VERSION: &str = "1";

/// The metadata that every artifact has; any other key is a note.
pub(super) const KEYS: [&str; 10] = [
    "format",
    "version",
    "method",
    "model_fingerprint",
    "layers",
    "kv_heads",
    "head_dim",
    "served_length",
    "tokens",
    "sha256",
];

/// The names of one side's tensors.
pub(super) struct TensorNames {
    pub transform: String,
    pub inverse: String,
    pub mean: String,
    pub clip: String,
    pub segments: String,
}

pub(super) fn tensor_names(layer: usize, role: Role) -> TensorNames {
    let (side, other) = match role {
        Role::Key => ("key", "query"),
        Role::Value => ("value", "output"),
    };
    TensorNames {
        transform: format!("layers.{layer}.{side}.transform"),
        inverse: format!("layers.{layer}.{other}.transform"),
        mean: format!("layers.{layer}.{side}.mean"),
        clip: format!("layers.{layer}.{side}.clip"),
        segments: format!("layers.{layer}.{side}.segments"),
    }
}

/// The bytes of the file.
pub(super) fn encode(contents: &Contents) -> Result<Vec<u8>> {
    let mut tensors = Tensors::new();
    let (kv_heads, head_dim) = (contents.n_kv_heads, contents.head_dim);
    for (index, layer) in contents.layers.iter().enumerate() {
        for role in [Role::Key, Role::Value] {
            let (side, names) = (layer.side(role), tensor_names(index, role));
            let mut put = |name: String, dtype, shape: Vec<usize>, bytes: Vec<u8>| {
                let bytes = Cow::Owned(bytes);
                tensors.insert(
                    name,
                    RawTensor {
                        dtype,
                        shape,
                        bytes,
                    },
                );
            };
            for (name, matrices) in [
                (names.transform, &side.transform),
                (names.inverse, &side.inverse),
            ] {
                if let Some(matrices) = matrices {
                    let shape = vec![matrices.heads, head_dim, head_dim];
                    put(name, Dtype::F32, shape, f32_bytes(&matrices.data));
                }
            }
            if let Some(mean) = &side.mean {
                let shape = vec![kv_heads, head_dim];
                put(names.mean, Dtype::F32, shape, f32_bytes(mean));
            }
            if let Some(clip) = side.clip {
                put(names.clip, Dtype::F32, vec![1], f32_bytes(&[clip]));
            }
            if let Some(segments) = &side.segments {
                // Both numbers are at most 16: `validate` has seen them.
                let bytes = segments
                    .iter()
                    .flat_map(|s| [s.sixteenths as i32, i32::from(s.bits)])
                    .flat_map(i32::to_le_bytes)
                    .collect();
                put(names.segments, Dtype::I32, vec![segments.len(), 2], bytes);
            }
        }
    }

    let mut metadata: Strings = [
        ("format", FORMAT.to_string()),
        ("version", VERSION.to_string()),
        ("method", contents.method.clone()),
        ("model_fingerprint", contents.fingerprint.clone()),
        ("layers", contents.layers.len().to_string()),
        ("kv_heads", kv_heads.to_string()),
        ("head_dim", head_dim.to_string()),
        ("served_length", contents.served_length.to_string()),
        ("tokens", contents.tokens.to_string()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_string(), value))
    .collect();
    metadata.extend(contents.notes.clone());
    metadata.insert("sha256".into(), container::digest(&metadata, &tensors));
    container::join(metadata, tensors).map_err(|error| Error::Artifact {
        path: contents.path.clone(),
        reason: format!("the header cannot be written: {error}"),
    })
}

/// The contents of a file; sizes, names and digest are checked here, the numbers by `validate`.
pub(super) fn decode(bytes: &[u8], path: PathBuf) -> Result<Contents> {
    match Reader::open(bytes).and_then(|mut reader| reader.contents(&path)) {
        Ok(contents) => Ok(contents),
        Err(reason) => Err(Error::Artifact { path, reason }),
    }
}

type Read<T> = std::result::Result<T, String>;

/// The parts of a file of this format and version whose digest is right.
struct Reader<'a> {
    metadata: Strings,
    tensors: Tensors<'a>,
}

impl<'a> Reader<'a> {
    fn open(file: &'a [u8]) -> Read<Self> {
        let (metadata, tensors) = container::split(file)?;
        let get = |key: &str| metadata.get(key).map_or("(none)", String::as_str);
        if get("format") != FORMAT {
            return Err(format!(
                "its format is `{}`, not `{FORMAT}`: this is another kind of file, or damaged; give \
                 the artifact that calibration wrote",
                get("format")
            ));
        }
        if get("version") != VERSION {
            return Err(format!(
                "its version is {} and this library reads {VERSION}: calibrate again, or use the \
                 library that wrote it",
                get("version")
            ));
        }
        let found = container::digest(&metadata, &tensors);
        if get("sha256") != found {
            return Err(format!(
                "its contents have SHA-256 {found} and should have {}: {DAMAGED}",
                get("sha256")
            ));
        }
        Ok(Self { metadata, tensors })
    }

    fn contents(&mut self, path: &Path) -> Read<Contents> {
        let n_layers = self.number("layers")?;
        // Every layer has a tensor, so a made-up count stops here and not after 2^64 layers.
        if n_layers > self.tensors.len() {
            return Err(format!(
                "it says {n_layers} layers and has {} tensors: calibrate again",
                self.tensors.len()
            ));
        }
        let (kv_heads, head_dim) = (self.number("kv_heads")?, self.number("head_dim")?);
        let mut layers = Vec::with_capacity(n_layers);
        for layer in 0..n_layers {
            layers.push(LayerCalibration {
                key: self.side(layer, Role::Key, kv_heads, head_dim)?,
                value: self.side(layer, Role::Value, kv_heads, head_dim)?,
            });
        }
        if let Some(name) = self.tensors.keys().next() {
            return Err(format!(
                "`{name}` is not a tensor of version {VERSION} with {n_layers} layers: calibrate \
                 again"
            ));
        }
        Ok(Contents {
            path: path.to_path_buf(),
            method: self.text("method")?.to_string(),
            fingerprint: self.text("model_fingerprint")?.to_string(),
            n_kv_heads: kv_heads,
            head_dim,
            served_length: self.number("served_length")?,
            tokens: self.number("tokens")?,
            layers,
            notes: (self.metadata.iter())
                .filter(|(key, _)| !KEYS.contains(&key.as_str()))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        })
    }

    fn side(
        &mut self,
        layer: usize,
        role: Role,
        kv_heads: usize,
        d: usize,
    ) -> Read<SideCalibration> {
        let names = tensor_names(layer, role);
        let expected = format!("[1 or {kv_heads}, {d}, {d}]");
        let mut matrices = |name: &str| -> Read<Option<Matrices>> {
            let fits = |s: &[usize]| s == [1, d, d] || s == [kv_heads, d, d];
            Ok(self
                .take(name, Dtype::F32, &expected, fits)?
                .map(|tensor| Matrices {
                    heads: tensor.shape[0],
                    head_dim: d,
                    data: f32_values(&tensor.bytes),
                }))
        };
        let (transform, inverse) = (matrices(&names.transform)?, matrices(&names.inverse)?);
        let mean = self.take(
            &names.mean,
            Dtype::F32,
            &format!("[{kv_heads}, {d}]"),
            |s| s == [kv_heads, d],
        )?;
        let clip = self.take(&names.clip, Dtype::F32, "[1]", |s| s == [1])?;
        let segments = self.take(&names.segments, Dtype::I32, "[segments, 2]", |s| {
            matches!(s, [_, 2])
        })?;
        Ok(SideCalibration {
            transform,
            inverse,
            mean: mean.map(|tensor| f32_values(&tensor.bytes)),
            clip: clip.and_then(|tensor| f32_values(&tensor.bytes).first().copied()),
            segments: segments
                .map(|tensor| segment_values(&names.segments, &tensor.bytes))
                .transpose()?,
        })
    }

    /// Removes a tensor, so that what is left at the end does not belong there.
    fn take(
        &mut self,
        name: &str,
        dtype: Dtype,
        expected: &str,
        fits: impl Fn(&[usize]) -> bool,
    ) -> Read<Option<RawTensor<'a>>> {
        let Some(tensor) = self.tensors.remove(name) else {
            return Ok(None);
        };
        if tensor.dtype != dtype || !fits(&tensor.shape) {
            return Err(format!(
                "`{name}` is {} {:?}, expected {dtype} {expected}: calibrate again",
                tensor.dtype, tensor.shape
            ));
        }
        Ok(Some(tensor))
    }

    fn text(&self, key: &str) -> Read<&str> {
        self.metadata
            .get(key)
            .map(String::as_str)
            .ok_or_else(|| format!("its metadata has no `{key}`: calibrate again"))
    }

    fn number(&self, key: &str) -> Read<usize> {
        let text = self.text(key)?;
        text.parse()
            .map_err(|_| format!("its `{key}` is `{text}`, not a number: calibrate again"))
    }
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn f32_values(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn segment_values(name: &str, bytes: &[u8]) -> Read<Vec<Segment>> {
    let (words, _) = bytes.as_chunks::<4>();
    let numbers: Vec<_> = words.iter().map(|word| i32::from_le_bytes(*word)).collect();
    let (pairs, _) = numbers.as_chunks::<2>();
    let segment = |[sixteenths, bits]: &[i32; 2]| {
        let sixteenths = usize::try_from(*sixteenths).ok()?;
        Some(Segment::new(sixteenths, u8::try_from(*bits).ok()?))
    };
    pairs
        .iter()
        .map(segment)
        .collect::<Option<_>>()
        .ok_or_else(|| {
            format!(
                "`{name}` holds {pairs:?}, expected pairs of 1 to 16 sixteenths and 0 to 4 bits: \
             calibrate again"
            )
        })
}
