// A client of the JSON dialect after the contract's own example: arrow-go and grpc-go as they come, with their
// defaults. The gateway and its tables are made by tests/flight/test_go.py, which runs each test of this folder.
package contract

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/vmihailenco/msgpack/v5"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// row is one row of the table that most tests use: k BIGINT NOT NULL, v STRING.
type row struct {
	K int64
	V string
}

// reply is what a statement is answered; the field tags are the contract's.
type reply struct {
	Status        string `msgpack:"status" json:"status"`
	AffectedRows  int64  `msgpack:"affected_rows" json:"affected_rows"`
	ReturningData []byte `msgpack:"returning_data" json:"returning_data"`
}

type client struct {
	t       *testing.T
	ctx     context.Context
	flight  flight.FlightServiceClient
	schema  string
	headers []string
}

func connect(t *testing.T, options ...grpc.CallOption) *client {
	t.Helper()
	address, schema := os.Getenv("CONTRACT_ADDRESS"), os.Getenv("CONTRACT_SCHEMA")
	if address == "" {
		t.Skip("run by tests/flight/test_go.py")
	}
	connection, err := grpc.NewClient(
		address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(options...),
	)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	t.Cleanup(func() { cancel(); connection.Close() })
	return &client{
		t:       t,
		ctx:     ctx,
		flight:  flight.NewFlightServiceClient(connection),
		schema:  schema,
		headers: []string{"airport-catalog", "lake"}, // this gateway has no default catalog
	}
}

// with is the same client with a header in every call.
func (c client) with(header, value string) *client {
	c.headers = append(append([]string{}, c.headers...), header, value)
	return &c
}

func (c *client) context() context.Context {
	return metadata.AppendToOutgoingContext(c.ctx, c.headers...)
}

func (c *client) command(operation, table string, fields map[string]any) []byte {
	document := map[string]any{"schema_name": c.schema, "table_name": table}
	if operation != "" {
		document["operation"] = operation
	}
	for name, value := range fields {
		document[name] = value
	}
	return marshal(c.t, document)
}

func (c *client) insert(table string, fields map[string]any, batches ...arrow.RecordBatch) (*reply, error) {
	return c.put(c.command("insert", table, fields), batches...)
}

func (c *client) update(table string, rowIDs []int64, batch arrow.RecordBatch, fields map[string]any) (*reply, error) {
	all := map[string]any{"row_ids": rowIDs}
	for name, value := range fields {
		all[name] = value
	}
	return c.put(c.command("update", table, all), batch)
}

func (c *client) delete(table string, rowIDs []int64, fields map[string]any) (*reply, error) {
	all := map[string]any{"row_ids": rowIDs}
	for name, value := range fields {
		all[name] = value
	}
	var told reply
	return &told, c.act("delete", c.command("", table, all), &told)
}

// put sends batches and reads the one answer.
func (c *client) put(command []byte, batches ...arrow.RecordBatch) (*reply, error) {
	stream, err := c.flight.DoPut(c.context())
	if err != nil {
		return nil, err
	}
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(batches[0].Schema()))
	writer.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: command})
	for _, batch := range batches {
		// A refused upload shows as EOF here; the answer says why.
		if err := writer.Write(batch); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
	if err := writer.Close(); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	result, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	var told reply
	if err := msgpack.Unmarshal(result.AppMetadata, &told); err != nil {
		return nil, err
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		c.t.Errorf("after the answer: %v", err)
	}
	return &told, nil
}

func (c *client) act(name string, body []byte, told any) error {
	stream, err := c.flight.DoAction(c.context(), &flight.Action{Type: name, Body: body})
	if err != nil {
		return err
	}
	result, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(result.Body, told); err != nil {
		return err
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		c.t.Errorf("after the answer: %v", err)
	}
	return nil
}

// exchange is DoExchange as a client that is not DuckDB uses it: rows up, the count in the last metadata.
func (c *client) exchange(operation, table string, batch arrow.RecordBatch) (int64, error) {
	stream, err := c.with("airport-operation", operation).with("return-chunks", "0").open()
	if err != nil {
		return 0, err
	}
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(batch.Schema()))
	writer.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{c.schema, table}})
	if err := writer.Write(batch); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	if err := writer.Close(); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	if err := stream.CloseSend(); err != nil {
		return 0, err
	}
	var last []byte
	for {
		data, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		if len(data.AppMetadata) > 0 {
			last = data.AppMetadata
		}
	}
	var told struct {
		TotalChanged int64 `msgpack:"total_changed"`
	}
	return told.TotalChanged, msgpack.Unmarshal(last, &told)
}

func (c *client) open() (flight.FlightService_DoExchangeClient, error) {
	return c.flight.DoExchange(c.context())
}

// rows reads a table: keys to texts.
func (c *client) rows(table string) map[int64]string {
	c.t.Helper()
	descriptor := &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{c.schema, table}}
	info, err := c.flight.GetFlightInfo(c.context(), descriptor)
	if err != nil {
		c.t.Fatal(err)
	}
	found := map[int64]string{}
	for _, endpoint := range info.Endpoint {
		stream, err := c.flight.DoGet(c.context(), endpoint.Ticket)
		if err != nil {
			c.t.Fatal(err)
		}
		reader, err := flight.NewRecordReader(stream)
		if err != nil {
			c.t.Fatal(err)
		}
		collect(c.t, reader, found)
		reader.Release()
	}
	if info.TotalRecords != int64(len(found)) {
		c.t.Errorf("total_records is %d, there are %d rows", info.TotalRecords, len(found))
	}
	return found
}

type records interface {
	Next() bool
	RecordBatch() arrow.RecordBatch
	Err() error
	Schema() *arrow.Schema
}

func collect(t *testing.T, reader records, found map[int64]string) {
	t.Helper()
	keys, texts := reader.Schema().FieldIndices("k")[0], reader.Schema().FieldIndices("v")[0]
	for reader.Next() {
		batch := reader.RecordBatch()
		for i := range int(batch.NumRows()) {
			found[batch.Column(keys).(*array.Int64).Value(i)] = batch.Column(texts).ValueStr(i)
		}
	}
	if err := reader.Err(); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

// returned reads the rows of a RETURNING statement.
func (r *reply) returned(t *testing.T) map[int64]string {
	t.Helper()
	reader, err := ipc.NewReader(bytes.NewReader(r.ReturningData))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Release()
	found := map[int64]string{}
	collect(t, reader, found)
	return found
}

var events = arrow.NewSchema([]arrow.Field{
	{Name: "k", Type: arrow.PrimitiveTypes.Int64},
	{Name: "v", Type: arrow.BinaryTypes.String, Nullable: true},
}, nil)

func batch(rows ...row) arrow.RecordBatch {
	builder := array.NewRecordBuilder(memory.DefaultAllocator, events)
	for _, each := range rows {
		builder.Field(0).(*array.Int64Builder).Append(each.K)
		builder.Field(1).(*array.StringBuilder).Append(each.V)
	}
	return builder.NewRecordBatch()
}

// texts is an upload that sets v alone.
func texts(values ...string) arrow.RecordBatch {
	builder := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(events.Fields()[1:], nil))
	for _, each := range values {
		builder.Field(0).(*array.StringBuilder).Append(each)
	}
	return builder.NewRecordBatch()
}

func marshal(t *testing.T, document any) []byte {
	t.Helper()
	raw, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func affects(t *testing.T, expected int64) func(*reply, error) *reply {
	return func(told *reply, err error) *reply {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if told.Status != "success" || told.AffectedRows != expected {
			t.Fatalf("told %s, %d rows; expected %d", told.Status, told.AffectedRows, expected)
		}
		return told
	}
}

// refused checks code, whole text and the true code in the details of an error.
func refused(t *testing.T, err error, code codes.Code, text, reason string) {
	t.Helper()
	told, isStatus := status.FromError(err)
	if err == nil || !isStatus {
		t.Fatalf("expected %v %q, got %v", code, text, err)
	}
	if told.Code() != code || told.Message() != text {
		t.Errorf("expected %v %q\n     got %v %q", code, text, told.Code(), told.Message())
	}
	if len(told.Details()) != 1 {
		t.Fatalf("expected one detail, got %v", told.Details())
	}
	info, isInfo := told.Details()[0].(*errdetails.ErrorInfo)
	if !isInfo || info.Reason != reason || info.Domain != "deltaport" {
		t.Errorf("expected the reason %s, got %v", reason, told.Details()[0])
	}
}
