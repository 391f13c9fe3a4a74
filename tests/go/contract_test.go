package contract

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var four = map[int64]string{0: "v0", 1: "v1", 2: "v2", 3: "v3"}

func (c *client) has(table string, expected map[int64]string) {
	c.t.Helper()
	if found := c.rows(table); !maps.Equal(found, expected) {
		c.t.Errorf("%s has %v, not %v", table, found, expected)
	}
}

func TestStatements(t *testing.T) {
	c := connect(t)
	affects(t, 2)(c.insert("n", nil, batch(row{10, "a"}, row{11, "b"})))
	affects(t, 2)(c.update("n", []int64{1, 4}, texts("x", "y"), nil))
	affects(t, 2)(c.delete("n", []int64{0, 5}, nil))
	c.has("n", map[int64]string{1: "x", 2: "v2", 3: "v3", 10: "y"})
}

func TestEmptyBatches(t *testing.T) {
	c := connect(t)
	empty := batch()
	affects(t, 3)(c.insert("n", nil, batch(row{10, "a"}), empty, batch(row{11, "b"}, row{12, "c"})))
	affects(t, 1)(c.insert("n", nil, empty, empty, batch(row{13, "d"}), empty))
	affects(t, 0)(c.insert("n", nil, empty))
	c.has("n", map[int64]string{0: "v0", 1: "v1", 2: "v2", 3: "v3", 10: "a", 11: "b", 12: "c", 13: "d"})
}

func TestReturning(t *testing.T) {
	c := connect(t)
	all := map[string]any{"returning": true}
	for _, each := range []struct {
		told     *reply
		expected map[int64]string
	}{
		{affects(t, 2)(c.insert("n", all, batch(row{10, "a"}), batch(row{11, "b"}))), map[int64]string{10: "a", 11: "b"}},
		{affects(t, 1)(c.update("n", []int64{2}, texts("x"), all)), map[int64]string{2: "x"}},
		{affects(t, 2)(c.delete("n", []int64{2, 3}, all)), map[int64]string{2: "x", 3: "v3"}},
	} {
		if found := each.told.returned(t); !maps.Equal(found, each.expected) {
			t.Errorf("returned %v, not %v", found, each.expected)
		}
	}
}

// What is returned travels in one message, and grpc-go takes 4 MiB unless told otherwise.
func TestReturningMoreThanAMessageHolds(t *testing.T) {
	c := connect(t)
	all := map[string]any{"returning": true}
	wide := strings.Repeat("x", 1000)
	rows := make([]row, 4150)
	for i := range rows {
		rows[i] = row{int64(1000 + i), wide}
	}
	text := "the returned rows take more than 4194304 bytes (limits.returned_bytes);" +
		" return fewer columns, or change fewer rows"
	_, err := c.insert("n", all, batch(rows...))
	refused(t, err, codes.InvalidArgument, text, "INVALID_ARGUMENT")
	c.has("n", four)
	most := rows[:4000]
	if found := affects(t, 4000)(c.insert("n", all, batch(most...))).returned(t); len(found) != 4000 {
		t.Errorf("returned %d rows", len(found))
	}
	narrow := map[string]any{"returning": true, "returning_columns": []string{"k"}}
	ids := make([]int64, len(most))
	for i := range ids {
		ids[i] = int64(4 + i)
	}
	_, err = c.delete("n", ids, all) // base64 makes it a third larger
	refused(t, err, codes.InvalidArgument, text, "INVALID_ARGUMENT")
	affects(t, 4000)(c.delete("n", ids, narrow))
	c.has("n", four)
}

func TestTransactions(t *testing.T) {
	c := connect(t)
	var begun struct {
		TransactionID string `json:"transaction_id"`
	}
	if err := c.act("create_transaction", nil, &begun); err != nil {
		t.Fatal(err)
	}
	within := c.with("x-transaction-id", begun.TransactionID)
	affects(t, 1)(within.insert("n", nil, batch(row{10, "a"})))
	if state := c.state(begun.TransactionID); state != "committed" {
		t.Errorf("the transaction is %s", state)
	}
	// One operation is all that an id allows.
	_, err := within.delete("n", []int64{0}, nil)
	text := fmt.Sprintf("transaction %s is not active (state: committed)", begun.TransactionID)
	refused(t, err, codes.Unknown, text, "FAILED_PRECONDITION")
	var undone struct{ State string }
	body := marshal(t, map[string]string{"transaction_id": begun.TransactionID})
	if err := c.act("rollback_transaction", body, &undone); err != nil {
		t.Fatal(err)
	}
	c.has("n", four)
}

func TestAFailureAbortsItsTransaction(t *testing.T) {
	c := connect(t)
	for name, fail := range map[string]func(*client) error{
		"delete": func(w *client) error { _, err := w.delete("n", []int64{99}, nil); return err },
		"put":    func(w *client) error { _, err := w.insert("nope", nil, batch(row{1, "x"})); return err },
		"exchange": func(w *client) error {
			_, err := w.exchange("insert", "nope", batch(row{1, "x"}))
			return err
		},
	} {
		var begun struct {
			TransactionID string `json:"transaction_id"`
		}
		if err := c.act("create_transaction", []byte("{}"), &begun); err != nil {
			t.Fatal(err)
		}
		if err := fail(c.with("x-transaction-id", begun.TransactionID)); status.Code(err) != codes.NotFound {
			t.Errorf("%s: %v", name, err)
		}
		if state := c.state(begun.TransactionID); state != "aborted" {
			t.Errorf("after a failed %s the transaction is %s", name, state)
		}
	}
	c.has("n", four)
}

func (c *client) state(transaction string) string {
	c.t.Helper()
	var told struct{ Status string }
	body := marshal(c.t, map[string]string{"transaction_id": transaction})
	if err := c.act("get_transaction_status", body, &told); err != nil {
		c.t.Fatal(err)
	}
	return told.Status
}

// The contract's error tables, and what else a statement may be refused for: code, whole text, true code.
func TestErrors(t *testing.T) {
	c := connect(t)
	one := batch(row{50, "x"})
	elsewhere := *c
	elsewhere.schema = "nowhere"
	insert := func(c *client, table string) error { _, err := c.insert(table, nil, one); return err }
	update := func(table string, fields map[string]any, ids ...int64) error {
		_, err := c.update(table, ids, texts("x"), fields)
		return err
	}
	remove := func(table string, ids ...int64) error { _, err := c.delete(table, ids, nil); return err }
	exchange := func(operation, table string) error {
		_, err := c.exchange(operation, table, one)
		return err
	}
	failed := codes.Unknown // the server cannot send FAILED_PRECONDITION and ABORTED; the details say so
	for _, each := range []struct {
		err    error
		code   codes.Code
		text   string
		reason string
	}{
		{insert(&elsewhere, "n"), codes.NotFound, "schema 'nowhere' not found", "NOT_FOUND"},
		{insert(c, "nope"), codes.NotFound, fmt.Sprintf("table '%s.nope' not found", c.schema), "NOT_FOUND"},
		{insert(c, "future"), failed, "table 'future' does not support INSERT operations", "FAILED_PRECONDITION"},
		{second(c.put(c.command("insert", "n", nil), texts("x"))), codes.InvalidArgument,
			"column mismatch: table has 2 columns, input has 1", "INVALID_ARGUMENT"},
		{update("n", nil), codes.InvalidArgument, "row_ids cannot be empty for UPDATE", "INVALID_ARGUMENT"},
		{update("n", nil, 1, 2), codes.InvalidArgument,
			"row_ids count (2) does not match input rows (1)", "INVALID_ARGUMENT"},
		{update("plain", nil, 1), failed, "table 'plain' does not support UPDATE (no rowid)", "FAILED_PRECONDITION"},
		{update("log", nil, 1), failed, "table 'log' does not support UPDATE (append-only)", "FAILED_PRECONDITION"},
		{update("n", nil, 99), codes.NotFound, "row_id 99 not found in table", "NOT_FOUND"},
		{remove("n"), codes.InvalidArgument, "row_ids cannot be empty for DELETE", "INVALID_ARGUMENT"},
		{remove("plain", 1), failed, "table 'plain' does not support DELETE (no rowid)", "FAILED_PRECONDITION"},
		{remove("n", 1, 99), codes.NotFound, "row_id 99 not found in table", "NOT_FOUND"},
		{c.act("nope", nil, nil), codes.Unimplemented, "unknown action 'nope'", "UNIMPLEMENTED"},
		{exchange("insert", "nope"), codes.NotFound, fmt.Sprintf("table '%s.nope' not found", c.schema), "NOT_FOUND"},
		{exchange("update", "n"), codes.InvalidArgument,
			"UPDATE requires rowid column in input schema", "INVALID_ARGUMENT"},
		{exchange("delete", "plain"), failed, "table does not support DELETE operations", "FAILED_PRECONDITION"},
		{second(c.with("airport-trace-id", strings.Repeat("x", 5000)).insert("n", nil, one)), codes.InvalidArgument,
			"header airport-trace-id is longer than 4096 characters", "INVALID_ARGUMENT"},
		{second(c.flight.GetFlightInfo(c.context(), &flight.FlightDescriptor{
			Type: flight.DescriptorPATH, Path: []string{c.schema, "nope"}})),
			codes.NotFound, fmt.Sprintf("table '%s.nope' not found", c.schema), "NOT_FOUND"},
	} {
		refused(t, each.err, each.code, each.text, each.reason)
	}
	stream, err := c.flight.DoGet(c.context(), &flight.Ticket{Ticket: []byte("none of yours")})
	if err == nil {
		_, err = stream.Recv()
	}
	refused(t, err, codes.InvalidArgument, "the ticket is not one of this gateway's", "INVALID_ARGUMENT")
	c.has("n", four)
}

func second[T any](_ T, err error) error { return err }

func TestAConflictIsTold(t *testing.T) {
	c := connect(t)
	affects(t, 1)(c.update("n", []int64{1}, texts("theirs"), nil))
	_, err := c.update("n", []int64{1}, texts("mine"), map[string]any{"read_version": 0})
	told, _ := status.FromError(err)
	if !strings.HasPrefix(told.Message(), "conflict: ") || strings.Contains(told.Message(), "Detail:") {
		t.Errorf("told %q", told.Message())
	}
	refused(t, err, codes.Unknown, told.Message(), "ABORTED")
}

func TestExchange(t *testing.T) {
	c := connect(t)
	if changed, err := c.exchange("insert", "n", batch(row{10, "a"})); err != nil || changed != 1 {
		t.Fatalf("%d rows, %v", changed, err)
	}
	c.has("n", map[int64]string{0: "v0", 1: "v1", 2: "v2", 3: "v3", 10: "a"})
}

// A client that gives up before it has sent everything has written nothing.
func TestGivingUp(t *testing.T) {
	c := connect(t)
	ctx, cancel := context.WithCancel(c.context())
	stream, err := c.flight.DoPut(ctx)
	if err != nil {
		t.Fatal(err)
	}
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(events))
	command := c.command("insert", "n", nil)
	writer.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: command})
	if err := writer.Write(batch(row{10, "a"})); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := stream.Recv(); !errors.Is(err, context.Canceled) && status.Code(err) != codes.Canceled {
		t.Errorf("told %v", err)
	}
	c.has("n", four)
}
