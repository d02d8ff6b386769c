//! stub
use crate::quantizer::{Quantizer, Role};
/// stub
#[derive(Clone, Debug)]
pub struct Matrices { /// s
 pub data: Vec<f32> }
/// stub
#[derive(Clone, Debug)]
pub struct SideCalibration { /// s
 pub transform: Option<Matrices>, /// s
 pub inverse: Option<Matrices>, /// s
 pub mean: Option<Vec<f32>> }
/// stub
#[derive(Clone, Debug)]
pub struct LayerCalibration { /// s
 pub key: SideCalibration, /// s
 pub value: SideCalibration }
/// stub
#[derive(Clone, Debug)]
pub struct Calibration;
impl Calibration {
    /// stub
    pub fn method(&self) -> &str { "oscar" }
    /// stub
    pub fn layer(&self, _l: usize) -> &LayerCalibration { unimplemented!() }
    /// stub
    pub fn check(&self, _f: Option<&str>, _l: usize, _k: usize, _d: usize) -> crate::Result<()> { Ok(()) }
    /// stub
    pub fn adjust_quantizer(&self, _l: usize, _r: Role, q: &Quantizer) -> Quantizer { q.clone() }
    /// stub
    pub fn adjust(&self, _k: &mut crate::method::Side, _v: &mut crate::method::Side) {}
}
